
"use strict";
// Every text from the document becomes a text node: a name or a reason is never read as markup.
(() => {
const EVERY = 2000, SLOWEST = 15000;  // ms between two readings
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

// -- elements

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children.flat().filter((child) => child !== null));
  return made;
}

/** Replaces what is in an element, but only where that would show something else: who reads or has selected it is not disturbed. */
function show(place, ...children) {
  const next = document.createElement(place.localName);
  next.append(...children.flat().filter((child) => child !== null));
  if (next.innerHTML !== place.innerHTML) place.replaceChildren(...next.childNodes);
}

// -- numbers

const known = (value) => value !== null && value !== undefined;
const digits = (value, most = 3) => new Intl.NumberFormat("en", {maximumSignificantDigits: most}).format(value);
const count = (value) => new Intl.NumberFormat("en").format(value);
const seconds = (value) => !known(value) ? "not known" : value < 1 ? `${digits(1e3 * value)} ms` : `${digits(value)} s`;
const percent = (value) => `${digits(100 * value)} %`;
const or = (value, told, other = "not known") => known(value) ? told(value) : other;
const usd = (value) => `${digits(value)} USD`;
const clock = (date) => date.toTimeString().slice(0, 8);
const minutes = (value) => value < 90 ? `${Math.round(value)} s` : `${digits(value / 60, 2)} min`;
const within = (promise) => `${digits(promise.percentile, 15)} % within ${seconds(promise.latency)}`;

// -- parts of the page

function term(name, value, more = null, predicted = false) {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, predicted ? element("span", {class: "predicted"}, value) : value, more === null ? null : element("small", {}, more)));
}

/** Rows of cells; the first of each row names it, and columns whose names are in `texts` hold words. */
function table(caption, head, rows, texts = []) {
  const kind = (name) => texts.includes(name) ? "text" : null;
  return element("table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, head.map((name) => element("th", {scope: "col", class: kind(name)}, name)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell, place) => place === 0
      ? element("th", {scope: "row"}, cell) : element("td", {class: kind(head[place])}, cell))))));
}

/** A place for a table that may be wider than the page, and is moved by keys then. */
function scroll(name) {
  return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": name});
}

function folded(name, inside) {
  return element("details", {}, element("summary", {}, name), inside);
}

let plots = 0;

/** A figure with its numbers in a table below it. */
class Plot {
  constructor(title, column) {
    this.title = title;
    this.column = column;
    this.picture = element("div");
    this.numbers = scroll(`${title}, in numbers`);
    const caption = `plot-${plots += 1}`;
    this.node = element("figure", {"aria-labelledby": caption},
      element("figcaption", {id: caption}, title), this.picture, folded("In numbers", this.numbers));
  }

  /** Points `[age in s, value or null]`, oldest first, over the last `span` seconds, and a `limit` that they should stay below. */
  line(points, span, told, limit = null) {
    const values = points.map(([, value]) => value).filter(known), top = nice(Math.max(0, ...values, limit ?? 0));
    const {width, height, left, right, above, below} = this.frame();
    const x = (age) => left + (width - left - right) * (1 - Math.min(age, span) / span);
    const y = (value) => above + (height - above - below) * (1 - value / top);
    const runs = [[]];
    for (const [age, value] of points) known(value) ? runs.at(-1).push(`${x(age).toFixed(1)},${y(value).toFixed(1)}`) : runs.push([]);
    const lines = runs.filter((run) => run.length).map((run) => run.length > 1
      ? drawn("polyline", {class: "series", points: run.join(" ")})
      : drawn("circle", {class: "bar", cx: run[0].split(",")[0], cy: run[0].split(",")[1], r: 2}));
    const said = values.length
      ? `now ${digits(values.at(-1))}, least ${digits(Math.min(...values))}, most ${digits(Math.max(...values))}` : "nothing measured yet";
    const bound = limit === null ? [] : [drawn("line", {class: "promise", x1: left, x2: width - right, y1: y(limit), y2: y(limit)}),
      drawn("text", {x: width - right, y: y(limit) - 4, "text-anchor": "end"}, `allowed: ${digits(limit)}`)];
    this.draw(`${this.title}, the last ${minutes(span)}: ${said}${limit === null ? "" : `, allowed ${digits(limit)}`}`, [
      ...this.axes(top), ...lines, ...bound,
      drawn("text", {x: left, y: height - 3}, `${minutes(span)} ago`),
      drawn("text", {x: width - right, y: height - 3, "text-anchor": "end"}, "now"),
    ]);
    show(this.numbers, table(told, ["seconds ago", this.column], points.map(([age, value]) => [digits(age), or(value, digits, "none")])));
  }

  /** Bars `[name, value]`. */
  bars(bars, told) {
    const top = nice(Math.max(0, ...bars.map(([, value]) => value)));
    const {width, height, left, right, above, below} = this.frame(), step = (width - left - right) / Math.max(1, bars.length);
    const parts = bars.flatMap(([name, value], place) => {
      const tall = (height - above - below) * value / top, from = left + step * (place + .1);
      return [drawn("rect", {class: "bar", x: from.toFixed(1), y: (height - below - tall).toFixed(1), width: (.8 * step).toFixed(1), height: tall.toFixed(1)}),
        drawn("text", {x: (from + .4 * step).toFixed(1), y: height - 3, "text-anchor": "middle"}, name.replace(" to ", "-").replace(" or more", "+"))];
    });
    const most = bars.reduce((one, other) => other[1] > one[1] ? other : one, ["", 0]);
    this.draw(`${this.title}: ${bars.length ? `most often ${most[0]}` : "none yet"}`, [...this.axes(top), ...parts]);
    show(this.numbers, table(told, ["requests in a batch", "batches"], bars.map(([name, value]) => [name, count(value)])));
  }

  frame() {
    return {width: Math.max(200, this.picture.clientWidth || 320), height: 144, left: 40, right: 6, above: 8, below: 18};
  }

  axes(top) {
    const {width, height, left, right, above, below} = this.frame();
    return [drawn("line", {class: "axis", x1: left, x2: width - right, y1: height - below, y2: height - below}),
      drawn("line", {class: "axis", x1: left, x2: left, y1: above, y2: height - below}),
      drawn("text", {x: left - 5, y: above + 9, "text-anchor": "end"}, digits(top)),
      drawn("text", {x: left - 5, y: height - below, "text-anchor": "end"}, "0")];
  }

  draw(said, parts) {
    const {width, height} = this.frame();
    show(this.picture, drawn("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said}, ...parts));
  }
}

/** The least of 1, 2, 5 times a power of ten that is not below a value. */
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

// -- what is told of a model

function verdict(model) {
  const promise = model.plan.promises[0], {ended, late, seconds: span} = model.measured;
  if (!promise) return ["", "No promise is made in this plan."];
  if (!ended) return ["", `Promised: ${within(promise)}. No request has ended in the last ${minutes(span)}.`];
  const share = late / ended, allowed = 1 - promise.percentile / 100, kept = share <= allowed;
  return [kept ? "good" : "bad", `${kept ? "✓ Promise kept" : "✗ Promise broken"}: ${within(promise)}; ${percent(1 - share)} were, in the last ${minutes(span)}.`];
}

function latencyRows(name, promise, ended, late, latency) {
  const allowed = promise ? 1 - promise.percentile / 100 : null;
  const told = latency.map((each) => `${each.name} ${bounds(each)}`).join(", ");
  return [name, promise ? within(promise) : "nothing", count(ended), ended ? `${percent(late / ended)}` : "none yet", or(allowed, percent, "any"), told || "none yet"];
}

function bounds(each) {
  return known(each.at_most) ? `${each.above ? `${seconds(each.above)} to ` : "below "}${seconds(each.at_most)}` : `above ${seconds(each.above)}`;
}

/** What all processes recorded, where that is read. */
function everywhere({all_processes: all}) {
  if (!all) return [];
  const span = `recorded by all processes in ${minutes(all.seconds)}`;
  return [term("requests/s, all processes", or(all.arrival_rate, digits, "0"), `${count(all.came)} ${span}`),
    term("mean batch, all processes", or(all.mean_batch_size, digits, "none yet"), `${count(all.batches)} batches ${span}`)];
}

/** Of all processes only those have a latency who asked the process that sent their batch. */
function latencyEverywhere({all_processes: all, plan}) {
  if (!all) return [];
  const [name, promised, , , may, took] = latencyRows(`all processes, in ${minutes(all.seconds)}`, plan.promises[0], 0, 0, all.latency);
  const late = known(all.late) && all.answered ? `${percent(all.late / all.answered)} of ${count(all.answered)} answers` : "none yet";
  const without = all.unanswered?.late ? `; ${count(all.unanswered.late)} without an answer` : "";
  return [[name, promised, count(all.requests), `${late}; ${count(all.failed)} failed${without}`, may, took]];
}

function functionsRows(model) {
  return model.routes.flatMap((route) => route.functions.map((each) => [
    route.name || "(all)",
    route.variant || model.name,
    or(route.accuracy, (value) => `${digits(value)} %`, "not told"),
    percent(route.share),
    or(route.measured_share, percent, route.name ? "none yet" : "100 %"),
    count(route.waiting),
    or(route.mean_batch_size, digits, "none yet"),
    each.function,
    String(each.under_way),
    known(each.asked_in) ? `not asked for ${seconds(each.asked_in)}` : "asked",
  ]));
}

function wellbeing(worker) {
  if (known(worker.tried_in)) return `✗ ejected, tried ${worker.tried_in > 0 ? `in ${seconds(worker.tried_in)}` : "with the next batch"}`;
  return worker.pace > 1 ? `✗ slow, takes ${digits(worker.pace)} times as long as the others` : "✓ well";
}

function workersRows(model) {
  return model.routes.flatMap((route) => route.functions.flatMap((each) => each.workers.map((worker) => [
    worker.address, route.name || "(all)", String(worker.in_flight), String(worker.doubts),
    wellbeing(worker)])));
}

/** What the function's own time comes to, in USD where prices are set. */
function used(told) {
  if (!told) return [];
  const of = `${count(told.requests)} requests in ${count(told.invocations)} invocations`;
  if (!known(told.usd_per_hour)) return [term("used in an hour", `${digits(told.gb_seconds_per_hour)} GB-s`, of)];
  return [term("an hour, as measured", usd(told.usd_per_hour), `${usd(told.usd_per_million)} a million; ${of}`),
    ...(known(told.usd_per_hour_alone) ? [term("an hour without batching, as measured", usd(told.usd_per_hour_alone),
      `if all took what the ${count(told.alone)} that left alone did`)] : [])];
}

/** What an hour costs at the measured rate, with batches and without, as the plan expects. */
function costs(cost) {
  const {predicted, predicted_without_batching: alone} = cost;
  const less = known(predicted.usd_per_million) && known(alone.usd_per_million) && predicted.usd_per_million > 0
    ? `; ${digits(alone.usd_per_million / predicted.usd_per_million)} times this plan's` : "";
  const one = (name, told, more) => term(name, or(told.usd_per_hour, usd), known(told.usd_per_million)
    ? `${usd(told.usd_per_million)} a million${more}` : "this plan says nothing of it", known(told.usd_per_hour));
  const planned = [one("an hour, predicted", predicted, ""), one("an hour without batching, predicted", alone, less)];
  return [...used(cost.used), ...planned.slice(0, cost.rehearsed?.unbatched && !known(alone.usd_per_million) ? 1 : 2), ...rehearsed(cost.rehearsed)];
}

/** What the last decision found that others would cost on the same arrivals. */
function rehearsed(told) {
  if (!told) return [];
  const serving = told.serving?.usd_per_million;
  const beside = (other) => [other !== told.serving && known(serving) && serving > 0 && known(other.usd_per_million) ? `${digits(other.usd_per_million / serving)} times the plan in force` : null,
    other.keeps ? null : "does not surely keep the promise"].filter(Boolean);
  const one = (name, other) => other ? [term(name, or(other.usd_per_hour, usd),
    [known(other.usd_per_million) ? `${usd(other.usd_per_million)} a million` : "not known", ...beside(other)].join("; "), known(other.usd_per_hour))] : [];
  return [...one("an hour, rehearsed", told.serving), ...one("an hour without batching, rehearsed", told.unbatched),
    ...one("an hour under the plan that somebody gave, rehearsed", told.given)];
}

// -- what controllers decided

const moment = (at) => `${clock(new Date(1000 * at))}`;
const between = (interval, tell) => !interval || !known(interval[0]) ? "not known"
  : known(interval[1]) && interval[2] > interval[1] ? `${tell(interval[0])} (${tell(interval[1])} to ${tell(interval[2])})` : tell(interval[0]);

function leads(control) {
  if (control.trouble) return `✗ What controllers decide cannot be read: ${control.trouble}`;
  return control.leader ? `The controller ${control.leader} leads.` : "No controller leads now.";
}

/** The decisions about a model, the newest first: what each was due for, what it expected, and what was measured until the next. */
function decided(model, control) {
  if (!model.decisions.length) {
    return [element("p", {class: control.trouble ? "bad" : "quiet"}, control.trouble || control.leader ? leads(control)
      : "No controller writes here: the plan is the one that somebody put there.")];
  }
  return [element("ol", {class: "decisions"}, model.decisions.map((each) => element("li", {},
    element("p", {}, element("strong", {}, `${moment(each.at)} ${each.changed ? "changed the plan" : each.trigger ? "kept the plan" : "noted"}`),
      each.digest ? [" to ", element("code", {}, each.digest)] : [], each.trigger ? ` (${each.trigger})` : ""),
    each.words ? element("p", {}, each.words) : null,
    each.alarm ? element("p", {class: "bad"}, `✗ ${each.alarm}`) : null,
    each.trigger || each.measured?.ended ? element("p", {class: "quiet"}, ...(each.trigger ? [expected(each), element("br")] : []),
      came(each, model.plan.promises[0])) : null,
  ))), element("p", {class: control.trouble ? "bad" : "quiet"}, leads(control))];
}

function expected(decision) {
  const of = decision.expected ?? decision.considered.find((each) => each.name === (decision.changed ? decision.chosen : decision.in_force));
  const said = [
    of ? `${between(of.late, percent)} late, ${between(of.usd_per_million, usd)} a million` : null,
    of && decision.promise ? `${decision.promise} ${between(of.percentile, seconds)}` : null,
    decision.arrival_rate ? `at ${digits(decision.arrival_rate)} requests/s` : null,
    decision.changed && known(decision.saving_usd_per_hour) ? `${usd(decision.saving_usd_per_hour)} saved an hour` : null,
    decision.changed && decision.change_usd ? `the change costs ${usd(decision.change_usd)}` : null,
  ].filter(Boolean);
  return [element("span", {class: "predicted"}, "Expected"), `: ${said.join(", ") || "not told"}.`];
}

/** What came of a decision: as the controller told it of all processes at the next, or as this process measured it since then. */
function came(decision, promise) {
  const {measured, came: told} = decision;
  if (told) {
    const beside = (value) => value ? ` (expected ${value})` : "", {expected: of} = told;
    return [`Came of it, at all processes in ${minutes(told.seconds)}: ${or(told.late, percent)} late${beside(of && or(of.late, percent))}`,
      known(told.percentile) ? `${decision.promise || "percentile"} ${seconds(told.percentile)}${beside(of && or(of.percentile, seconds))}` : null,
      known(told.usd_per_million) ? `${usd(told.usd_per_million)} a million${beside(of && known(of.usd_per_million?.[0]) ? `${between(of.usd_per_million, usd)} at this rate` : "")}` : null,
      `${count(told.requests)} requests, ${or(told.arrival_rate, digits)} a second`].filter(Boolean).join(", ") + ".";
  }
  if (!measured) return "Measured: too little is kept of that time.";
  if (!measured.ended) return "Measured: no request has ended.";
  const at = promise && measured.latency.find((each) => each.name === `p${digits(promise.percentile, 15)}`);
  return `Measured until the next one or now: ${percent(measured.late / measured.ended)} late or not answered of ${count(measured.ended)}, `
    + `${digits(measured.arrival_rate)} requests/s${at ? `, ${at.name} ${bounds(at)}` : ""}.`;
}

/** What was measured less what was predicted of each memory size and batch size, which plans are corrected by. */
function corrected(decision) {
  const signed = (value, scale) => !value || !known(value[0]) ? "not known"
    : `${value[0] < 0 ? "−" : "+"}${digits(Math.abs(scale * value[0]))}${known(value[1]) ? ` ± ${digits(scale * value[1], 2)}` : ""}`;
  return table(`What the last decision corrected its plans by; ${seconds(decision.way ?? 0)} are spent on the way through the buffer, and ${seconds(decision.bias ?? 0)} were added to every rehearsal`,
    ["memory, MB", "batch size", "batches", "latency, ms", "cost, %"],
    decision.corrections.map((each) => [String(each.memory_mb), String(each.batch_size), count(each.batches), signed(each.latency, 1000), signed(each.cost, 100)]));
}

/** The plans of a decision side by side, in what an hour of each would cost at the rate that is measured now. */
function weighed(decision, rate) {
  const hour = (interval) => known(rate) && interval && known(interval[0]) ? usd(interval[0] * rate * 3600 / 1e6) : "not known";
  return table("As they were rehearsed; an hour is one at the rate that is measured now",
    ["plan", "USD a million", "an hour", "late", "latency", "keeps every promise"],
    decision.considered.map((each) => [
      `${each.name}${each.name === decision.chosen ? " (chosen)" : each.name === decision.in_force ? " (in force)" : ""}`,
      between(each.usd_per_million, digits), hour(each.usd_per_million), between(each.late, percent), between(each.percentile, seconds),
      each.keeps ? "✓ surely" : "✗ not surely"]));
}

const leftOut = (n, what) => n ? [element("p", {class: "quiet"}, `${count(n)} more ${what}: not shown.`)] : [];

/** The section of one model, made once and brought up to date; what a reader has opened stays open. */
class Model {
  constructor(name) {
    const heading = `model-${name}`;
    this.verdict = element("p", {class: "verdict"});
    this.figures = element("dl", {class: "figures"});
    this.rate = new Plot("Requests per second", "requests per second");
    this.waiting = new Plot("Requests waiting", "requests waiting");
    this.sizes = new Plot("Batch sizes", "batches");
    this.late = new Plot("Percent not in time", "percent");
    this.latency = scroll(`Latency of ${name}`);
    this.words = element("div");
    this.rows = element("div");
    this.tables = folded("The whole table", this.rows);
    this.decisions = element("div");
    this.weighed = scroll(`Plans that were compared for ${name}`);
    this.considered = folded("What the last decision compared", this.weighed);
    this.learned = scroll(`What was measured less predicted of ${name}`);
    this.corrections = folded("Measured less predicted", this.learned);
    this.routes = scroll(`Routes and functions of ${name}`);
    this.workers = scroll(`Workers of ${name}`);
    this.more = element("div");
    this.node = element("section", {class: "model", "aria-labelledby": heading},
      element("h2", {id: heading}, name), this.verdict, this.figures,
      element("div", {class: "plots"}, this.rate.node, this.late.node, this.waiting.node, this.sizes.node),
      element("h3", {}, "Latency and promises"), this.latency,
      element("h3", {}, "Plan in force"), this.words, this.tables,
      element("h3", {}, "Decisions"), this.decisions, this.considered, this.corrections,
      element("h3", {}, "Routes, functions and workers"), this.routes, this.workers, this.more);
  }

  update(model, {kept, control}) {
    const {measured, plan, cost, invoked} = model, [mood, said] = verdict(model);
    this.said = mood && `${model.name}: ${said.split(":")[0].slice(2)}.`;
    this.verdict.className = `verdict ${mood}`;
    show(this.verdict, said);
    const refused = Object.entries(measured.refused).map(([error, n]) => `${count(n)} ${error}`).join(", ");
    show(this.figures,
      ...everywhere(model),
      term("requests/s", or(measured.arrival_rate, digits, "0"), `${count(measured.came)} came to this process in ${minutes(measured.seconds)}`),
      term("waiting now", count(model.waiting), "at all processes"),
      term("mean batch", or(measured.mean_batch_size, digits, "none yet"), `${count(measured.batches)} batches of this process`),
      term("function's time, mean", or(invoked.mean_seconds, seconds, "not told"),
        `${count(invoked.invocations)} invocations, ${count(invoked.cold)} cold`),
      term("not answered", count(Object.values(measured.refused).reduce((sum, n) => sum + n, 0)), refused || "none"),
      ...costs(cost));
    const points = (value) => model.series.map((each) => [-each.end, value(each)]);
    this.rate.line(points((each) => each.arrival_rate), kept, "Requests per second that came to this process");
    this.waiting.line(points((each) => each.waiting), kept, "Requests that wait, at all processes, as this one heard last");
    const promise = plan.promises[0];
    this.late.line(points((each) => each.ended && promise ? 100 * each.late / each.ended : null), kept,
      "Of the requests that ended at this process, the percentage that had no answer in time", promise ? 100 - promise.percentile : null);
    this.sizes.bars(measured.batch_sizes.map((each) => [each.sizes, each.batches]), "Batches that left this process");
    show(this.latency, table(`Of requests that ended in the last ${minutes(measured.seconds)}`,
      ["requests", "promised", "ended", "late or not answered", "may be late", "answers took"],
      [latencyRows("all of this process", plan.promises[0], measured.ended, measured.late, measured.latency),
        ...latencyEverywhere(model),
        ...model.classes.map((each) => latencyRows(`class ${each.name}`, each.promise, each.ended, each.late, each.latency))],
      ["promised", "answers took"]), leftOut(model.classes_left_out, "classes"));
    this.plan(plan);
    show(this.decisions, ...decided(model, control));
    const last = model.decisions.find((each) => each.considered.length), learned = model.decisions.find((each) => each.corrections.length);
    this.considered.hidden = !last;
    if (last) show(this.weighed, weighed(last, model.all_processes?.arrival_rate ?? measured.arrival_rate));
    this.corrections.hidden = !learned;
    if (learned) show(this.learned, corrected(learned));
    show(this.routes, table("Routes", ["route", "variant", "accuracy", "share planned", "share measured", "waiting", "mean batch", "function", "calls under way", "state"],
      functionsRows(model), ["variant", "function", "state"]));
    const workers = workersRows(model);
    show(this.workers, workers.length ? table("Workers, as this process finds them", ["worker", "route", "batches in flight", "failures in a row", "health"], workers, ["route", "health"]) : "");
    this.workers.hidden = !workers.length;
    show(this.more, leftOut(model.routes_left_out, "routes"));
  }

  plan(plan) {
    const told = plan.predicted ? Object.entries(plan.predicted.latency).map(([name, value]) => `${name} ${seconds(value)}`).join(", ") : null;
    const sentences = (each) => element("ul", {class: "words"}, each.words.map((words) => element("li", {}, words)));
    show(this.words,
      ...plan.tables.flatMap((each) => [
        element("p", {}, each.route ? `Route ${each.route}: ` : "", element("code", {}, each.function), ` (${each.kind})`), sentences(each)]),
      element("p", {class: "quiet"}, "Digest ", element("code", {}, plan.digest), plan.made_at ? `, made at ${plan.made_at}` : "",
        known(plan.memory_mb) ? `, ${plan.memory_mb} MB` : "", "."),
      plan.put ? element("p", {}, `Put there by ${plan.put.by || "somebody"} at ${moment(plan.put.at)}${plan.put.why ? `: ${plan.put.why}` : "."}`) : null,
      plan.followers ? element("p", {class: plan.followers.follow < plan.followers.buffers ? "bad" : ""},
        plan.followers.digest === plan.digest ? "" : `Of plan ${plan.followers.digest} in Redis: `, `${plan.followers.words}.`) : null,
      told ? element("p", {}, element("span", {class: "predicted"}, "Predicted"), `: ${told}, mean batch ${digits(plan.predicted.mean_batch_size)}.`) : null,
      plan.refused ? element("p", {class: "bad"}, `✗ Another plan is refused: ${plan.refused.reason}`) : null);
    show(this.rows, ...plan.tables.flatMap((each) => [
      each.rows.length ? table(`${each.route ? `${each.route}: ` : ""}${each.function}`, ["waiting", "then wait until the oldest has waited", "leave"],
        each.rows.map((row) => [row.waiting, row.hold === null ? "for ever" : row.hold === 0 ? "nothing: at once" : seconds(row.hold), row.leave || "none"])) : null,
      ...leftOut(each.rows_left_out, "rows")]));
    this.tables.hidden = !plan.tables.some((each) => each.rows.length);
  }
}

// -- the workers that wrote themselves down

const listed = (names, left = 0) => [...names, ...(left ? [`${count(left)} more`] : [])].join(", ") || "nothing";

function health(worker) {
  if (worker.leaving) return "✗ leaves";
  return worker.alive ? "✓ well" : `✗ silent for ${seconds(worker.silent)}`;
}

class Fleet {
  constructor() {
    this.trouble = element("p", {class: "bad"});
    this.types = scroll("Types of devices");
    this.workers = scroll("Workers that wrote themselves down");
    this.node = element("section", {class: "fleet", "aria-labelledby": "fleet", hidden: ""},
      element("h2", {id: "fleet"}, "Fleet"), this.trouble, this.types, folded("Every worker", this.workers));
  }

  update(fleet) {
    this.node.hidden = !fleet;
    if (!fleet) return;
    show(this.trouble, fleet.trouble ? `✗ Who is there cannot be read: ${fleet.trouble}` : "");
    show(this.types, table("Types of devices; which share of a model's requests each variant gets stands at the model",
      ["device", "workers", "heard of", "loaded, on how many"],
      fleet.types.map((each) => [each.device, count(each.workers), count(each.alive),
        listed(Object.entries(each.loaded).map(([name, on]) => `${name} ${count(on)}`), each.loaded_left_out)]), ["loaded, on how many"]),
    leftOut(fleet.types_left_out, "types"));
    show(this.workers, table("Workers that wrote themselves down", ["worker", "device", "health", "loaded", "loads now", "could load", "slowest load"],
      fleet.workers.map((each) => [each.address, each.device, health(each), listed(each.loaded), listed(each.loading), count(each.variants),
        or(each.slowest_load, seconds, "not told")]), ["device", "health", "loaded", "loads now"]),
    leftOut(fleet.workers_left_out, "workers"));
  }
}

// -- reading again and again

const models = new Map(), fleet = new Fleet();
let paused = false, timer = null, failures = 0, saidLast = null;

function update(told) {
  const names = told.models.map((model) => model.name);
  for (const [name, model] of models) if (!names.includes(name)) { model.node.remove(); models.delete(name); }
  for (const [place, model] of told.models.entries()) {
    if (!models.has(model.name)) {
      models.set(model.name, new Model(model.name));
      const nodes = byId("models").querySelectorAll(":scope > section.model");
      byId("models").insertBefore(models.get(model.name).node, nodes[place] ?? byId("others"));
    }
    models.get(model.name).update(model, told);
  }
  fleet.update(told.fleet);
  show(byId("recorded"), told.recorded.trouble ? `✗ What all processes recorded cannot be read: ${told.recorded.trouble}` : "");
  byId("contents").hidden = names.length < 2;
  show(byId("contents").firstElementChild, ...names.map((name) => element("li", {}, element("a", {href: `#model-${name}`}, name))));
  show(byId("others"), names.length ? null : element("p", {}, "No plan is in force: nothing is served yet."),
    leftOut(told.models_left_out, "models with fewer requests"),
    ...told.other_decisions.map((each) => element("p", {}, element("strong", {}, moment(each.at)), ` ${each.model ? `${each.model}: ` : ""}${each.words}`)),
    ...told.refused_plans.map((each) => element("p", {class: "bad"}, `✗ A plan at ${each.place} is refused: ${each.reason}`)));
  say([...models.values()].map((model) => model.said).filter(Boolean).join(" "));
}

/** Said to who does not see the page, when it changes. */
function say(text) {
  if (text !== saidLast) byId("said").textContent = saidLast = text;
}

async function read() {
  timer = null;
  try {
    const answer = await fetch("status", {cache: "no-store", signal: AbortSignal.timeout(10000)});
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    const told = await answer.json();
    failures = 0;
    show(byId("contact"), `As of ${clock(new Date(told.at))}; this process began ${minutes(told.up)} before.`);
    update(told);
  } catch (error) {
    failures += 1;
    show(byId("contact"), element("span", {class: "bad"}, `✗ Not read since the time below (${error.message}); it is tried again.`));
    say("The buffer does not answer.");
  }
  later(Math.min(SLOWEST, EVERY * 2 ** Math.min(failures, 4)));
}

function later(wait) {
  if (timer === null && !paused && !document.hidden) timer = setTimeout(read, wait);
}

byId("models").append(element("div", {id: "others"}), fleet.node);
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (paused && timer !== null) { clearTimeout(timer); timer = null; }
  later(0);
});
document.addEventListener("visibilitychange", () => later(0));
read();
})();
