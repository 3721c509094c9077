"""Every policy on real traces under several SLOs: writes docs/policy-zoo.md, its figure and its data.

    python studies/policy_zoo.py [TRACES_FOLDER]

Each trace is cut in the middle of its time. Policies are made from the first half and run over the second, which none of them has
seen; those that learn on the way see each arrival when it has come. The excerpt in examples/traces is run every time; the other
traces only where their folder is given, else their rows are kept as they stand in studies/policy-zoo.csv. The page is made of
that file.
"""

from __future__ import annotations

import argparse
import csv
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib.figure import Figure

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer import baselines
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import ArrivalProcess
from sluice.optimizer.baselines import Situation, Workload
from sluice.optimizer.baselines.names import FIXED, LAG, STATIC
from sluice.optimizer.billing import default_prices
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.fits.windows import WindowFit
from sluice.optimizer.recommend import Answer, FunctionSetting, WorkerOffer
from sluice.optimizer.recommend.question import PREMIUM
from sluice.optimizer.service import service_times
from sluice.optimizer.simulation import Deployment, Environments, Function, TraceArrivals, simulate_deployments
from sluice.optimizer.traces.trace import Trace, read_trace

DOCS = Path(__file__).parents[1] / "docs"
DATA = Path(__file__).parent / "policy-zoo.csv"
EXAMPLES = DOCS.parent / "examples" / "traces"

PERCENTILE = 95.0
LATENCIES = (0.1, 0.2, 0.5)  # s
ALLOWED = Slo(LATENCIES[0], PERCENTILE).error_budget
CORE = 1769  # MB of memory that have one core
MEMORY_SIZES = (885, CORE)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
INIT = 0.5  # s
KEEP_ALIVE, SCALING_RATE, BURST = 300.0, 100.0, 1000
MACHINE, CORES = "c5.xlarge", 4
WINDOWS = 5  # of half a trace, that reoptimised goes by
CHOSEN = "rehearsed"  # the cheapest of all that surely kept the SLO in the first half
SAME, NEAR = 1e-4, 0.005  # parts of the cost: of equals the first is named; what is no cheaper than that is as cheap


class Kind(NamedTuple):
    """A trace: its file, how many times as fast it is run, and what it is."""

    file: str
    speed: float
    said: str


TRACES = {
    "LLM, 15 min": Kind(
        "azure_llm_code_excerpt.csv.gz",
        1.0,
        "requests to a code LLM, 3.6/s: [the excerpt](../examples/traces/README.md) that the project ships.",
    ),
    "LLM, 1 h × 5": Kind(
        "azure_llm_code.csv.gz", 5.0, "the hour that it was cut from (Azure Public Dataset, CC-BY 4.0), run five times as fast."
    ),
    "Ethernet × 1/10": Kind(
        "bc_aug89_first200k.csv.gz",
        0.1,
        "the first 200 000 packets of Bellcore's BC-pAug89, a tenth as fast: bursts on every scale.",
    ),
    "maps": Kind(
        "livemaps_1030.csv.gz",
        1.0,
        "requests to a storage back end of a map service, 111/s, smoother than Poisson.",
    ),
}
SHIPPED = "LLM, 15 min"

# seconds of a batch on one core: intercept, and for each request
NETWORKS = {"perceptron": (0.0056, 0.00074), "GoogLeNet": (0.0, 0.0467)}


@dataclass(frozen=True)
class Row:
    """What a policy came to in a cell: ``cost`` in USD per million requests, ``init`` of which are for cold starts; times in s.

    ``p95`` is inf where 5 % have no answer; all is nan where the policy cannot be had.
    """

    trace: str
    network: str
    slo: float
    policy: str
    cost: float
    init: float
    p95: float
    violations: float
    mean_batch: float
    workers: float
    by_function: float
    past_violations: float

    @property
    def cell(self) -> tuple[str, str, float]:
        """What rows to be compared have in common."""
        return self.trace, self.network, self.slo

    @property
    def keeps(self) -> bool:
        """Whether the SLO is kept in the run."""
        return self.violations <= ALLOWED


# --- what is run


def profile_of(network: str) -> ServiceProfile:
    """Service times in proportion to the share of a core."""
    intercept, slope = NETWORKS[network]
    points = []
    for memory_mb, size in product(MEMORY_SIZES, BATCH_SIZES):
        seconds = (intercept + slope * size) * CORE / memory_mb
        points.append(ProfilePoint(memory_mb, size, ServiceTime(seconds), seconds))
    return ServiceProfile(function=network, points=points, init={m: ServiceTime(INIT) for m in MEMORY_SIZES})


class Halves(NamedTuple):
    """A trace cut in the middle, what was fitted to its first half, and to windows that slide into the second (s)."""

    past: Array
    run: Array
    process: ArrivalProcess
    windows: tuple[WindowFit, ...]

    @classmethod
    def of(cls, trace: Trace) -> Halves:
        """Cut and fitted."""
        middle = trace.duration / 2
        run = trace.times[trace.times >= middle]
        first = trace.between(0, middle)
        process = ArrivalProcess.of(fit_arrivals(first))
        width = middle / WINDOWS
        windows = baselines.past_windows(trace.times, width, start=float(run[0]), step=width)
        return cls(trace.times[trace.times < middle], run, process, windows)


class Cell:
    """A trace, a network and an SLO: the policies made for them."""

    def __init__(self, halves: Halves, network: str, latency: float) -> None:
        self.halves, profile = halves, profile_of(network)
        function = Function(profile, CORE, environments=Environments(INIT, KEEP_ALIVE, None, SCALING_RATE, BURST))
        worker = WorkerOffer("worker", service_times(profile, CORE), function.billing.prices.machine(MACHINE) / CORES)
        workload = Workload(halves.process, halves.past, TraceArrivals(halves.run))
        self.situation = Situation(workload, function, (Slo(latency, PERCENTILE),), worker=worker)

    def policies(self) -> Iterator[tuple[str, Callable[[Array], Deployment]]]:
        """Every policy by name, to be made for arrivals at given times, of which it knows those that have come."""
        yield "no batching", self._cheapest("no-batching")
        yield "size or timeout", self._cheapest(f"size-or-timeout:{FIXED[0]},{FIXED[1]}")
        yield "last moment", self._cheapest("last-moment")
        yield "BATCH", lambda _: self._recommended(replace(self._batch, workers=()))
        yield "BATCH again", self._reoptimised
        yield "recommended", lambda _: self._recommended(self._answer)
        yield "without premium", lambda _: self._recommended(self._cheapest_predicted)
        yield "greedy", self._sized("greedy")
        yield "static", self._sized(f"static:{STATIC}")
        yield "SMDP", self._sized("smdp")
        yield "deadline", self._sized("deadline")
        yield "AIMD", self._sized("aimd")
        yield "early drop", self._sized("early-drop")
        yield "fixed workers", self._sized("workers")
        yield "autoscaling", lambda times: baselines.named("autoscaling", self._over(times))
        yield "overflow", self._cheapest("overflow")

    def rows(self, trace: str, network: str) -> Iterator[Row]:
        """What they come to in the second half, and the one that the first half would choose."""
        halves, slo = self.halves, self.situation.slo
        latency = slo.latency
        made: dict[str, Deployment] = {}
        rehearsals: dict[str, Deployment] = {}
        for name, make in self.policies():
            try:
                made[name] = make(halves.run)
                rehearsals[name] = make(halves.past)
            except (Infeasible, InvalidInput):  # nothing of this kind keeps the SLO, or can be asked to
                yield Row(trace, network, latency, name, *[np.nan] * 8)
        past = simulate_deployments(rehearsals, TraceArrivals(halves.past), [latency])
        runs = simulate_deployments(made, TraceArrivals(halves.run), [latency])
        sure = [name for name in past if past[name].violations().high <= slo.error_budget and name != "BATCH again"]
        chosen = min(sure, key=lambda name: past[name].cost.per_request, default="no batching")
        for name, of in [*((name, name) for name in runs), (CHOSEN, chosen)]:
            run = runs[of]
            yield Row(
                trace,
                network,
                latency,
                name,
                1e6 * run.cost.per_request,
                1e6 * run.cost.init,
                run.percentile(PERCENTILE).value,
                run.violation_ratio(),
                run.mean_batch_size,
                run.worker_seconds / run.span,
                run.by_function,
                past[of].violation_ratio(),
            )

    def _over(self, times: Array, memory_mb: int | None = None) -> Situation:
        """The situation in which these arrivals come, for the function with so much memory."""
        workload = self.situation.workload._replace(run=TraceArrivals(times))
        return replace(self.situation, workload=workload, memory_mb=memory_mb)

    @cached_property
    def _answer(self) -> Answer:
        """Of `sluice recommend`."""
        return self.situation.answer()

    @property
    def _settings(self) -> list[FunctionSetting]:
        """The best setting of every kind, the cheapest first."""
        return sorted([self._answer.best, *self._answer.runners_up], key=lambda setting: setting.cost.per_request)

    @property
    def _cheapest_predicted(self) -> Answer:
        """The answer without a premium for a table that keeps the SLO whatever comes."""
        return replace(self._answer, best=self._settings[0])

    @property
    def _batch(self) -> Answer:
        """The answer among size-or-timeout settings alone."""
        return replace(self._answer, best=next(setting for setting in self._settings if setting.table is None))

    def _recommended(self, answer: Answer) -> Deployment:
        return baselines.recommended(answer, self.situation.any_function)

    def _cheapest(self, name: str) -> Callable[[Array], Deployment]:
        """At the memory size at which it was cheapest on the past among those that kept the SLO, or was late least."""
        past, slo = self.halves.past, self.situation.slo
        tried = {str(memory_mb): baselines.named(name, self._over(past, memory_mb)) for memory_mb in MEMORY_SIZES}
        runs = simulate_deployments(tried, TraceArrivals(past), [slo.latency])

        def regret(memory_mb: int) -> tuple[float, float]:
            run = runs[str(memory_mb)]
            return max(run.violation_ratio() - slo.error_budget, 0.0), run.cost.per_request

        best = min(MEMORY_SIZES, key=regret)
        return lambda times: baselines.named(name, self._over(times, best))

    def _sized(self, name: str) -> Callable[[Array], Deployment]:
        """With the fewest workers that kept the SLO in the past, whatever comes."""
        sized = cache(lambda: baselines.named(name, self.situation))
        return lambda _: sized()

    def _reoptimised(self, times: Array) -> Deployment:
        """In the past, where there are no windows, the setting that it begins with."""
        best, situation = self._batch.best, self.situation
        windows = self.halves.windows if times is self.halves.run else ()
        return baselines.reoptimised(situation.any_function.at(best.memory_mb), situation.slos, windows, best.policy)


def run_trace(name: str, folder: Path) -> Iterator[Row]:
    """All cells of a trace."""
    kind = TRACES[name]
    halves = Halves.of(read_trace(folder / kind.file).sped_up(kind.speed))
    for network, latency in product(NETWORKS, LATENCIES):
        yield from Cell(halves, network, latency).rows(name, network)


# --- the data


def write(rows: Iterable[Row]) -> None:
    """The data as a file."""
    with DATA.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = asdict(row)
            writer.writerow({name: f"{v:.5g}" if isinstance(v, float) else v for name, v in values.items()})


def read() -> list[Row]:
    """The data of the file."""
    with DATA.open(newline="", encoding="utf-8") as file:
        named = [field.name for field in fields(Row)]
        text = named.index("policy") + 1
        return [
            Row(line["trace"], line["network"], float(line["slo"]), line["policy"], *(float(line[name]) for name in named[text:]))
            for line in csv.DictReader(file)
        ]


# --- the page


def cells(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """The rows of each cell, by policy."""
    found: dict[tuple[str, str, float], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.cell, {})[row.policy] = row
    return list(found.values())


def winner(cell: dict[str, Row]) -> Row:
    """The cheapest policy that keeps the SLO; of all but equal ones the first of the list."""
    kept = [row for name, row in cell.items() if row.keeps and name != CHOSEN]
    least = min(row.cost for row in kept)
    return next(row for row in kept if row.cost <= least * (1 + SAME))


def verdict(cell: dict[str, Row]) -> str:
    """How the recommended policy stands: cheapest, or why not."""
    row, best = cell["recommended"], winner(cell)
    if not row.keeps:
        return "fit" if row.past_violations > ALLOWED else "drift"
    if row.cost <= best.cost * (1 + NEAR):
        return "cheapest"
    return "cold" if row.init - best.init > (row.cost - best.cost) / 2 else "family"


def page(rows: Sequence[Row]) -> str:
    """The page, all numbers from the data."""
    found = cells(rows)
    verdicts = [verdict(cell) for cell in found]
    of = {said: [cell for cell, its in zip(found, verdicts, strict=True) if its == said] for said in VERDICTS}
    kept = [(cell[CHOSEN], winner(cell)) for cell in found if cell[CHOSEN].keeps]
    beyond = [row.cost / best.cost - 1 for row, best in kept]
    wins = {name: sum(winner(cell).policy == name for cell in found) for name in found[0] if name != CHOSEN}
    ranked = sorted((name for name, count in wins.items() if count), key=lambda name: -wins[name])
    missed = {name: sum(not cell[name].keeps for cell in found) for name in found[0]}
    by_workers = [cell[CHOSEN] for cell in found if winner(cell).workers > 0]
    sections = [
        "# Policy zoo",
        paragraph("""
        Made by `python studies/policy_zoo.py [TRACES_FOLDER]` from the data that it leaves in
        [policy-zoo.csv](../studies/policy-zoo.csv); a test makes this page again from the data, and part of the data from the
        models."""),
        paragraph(f"""
        Every policy on real traces under several SLOs ({PERCENTILE:g} % within {spoken(LATENCIES)} s): who keeps the SLO, and at
        what cost. Each trace is cut in the middle of its time. Whatever is planned is planned on the first half; the figures are of
        the second, which nobody has seen before. `sluice simulate --trace FILE --policy all` does the same for a trace of one's
        own."""),
        "## What is compared",
        "\n".join(f"- **{name}**: {kind.said}" for name, kind in TRACES.items()),
        paragraph(f"""
        Two networks on one core: a perceptron whose time is reading its weights, 5.6 + 0.74 b ms for a batch of b, and GoogLeNet,
        46.7 b ms, for which batching saves nothing but the request fee. As a function they have {spoken(MEMORY_SIZES)} MB
        ({CORE} MB
        is one core), cold starts of {INIT:g} s and environments that stay {KEEP_ALIVE:g} s; as workers, a core of a {MACHINE} each,
        for a quarter of its price. Prices: {default_prices().region}, read {default_prices().read_on}."""),
        paragraph(f"""
        The policies are those of `optimizer/baselines`, where each says what of its original it keeps and leaves out. A
        policy that needs a number of workers gets the fewest that keep the SLO in the first half; one that needs a memory size the
        cheapest that does. *Size or timeout* is {FIXED[0]} or {milliseconds(FIXED[1])} whatever the load, *static* {STATIC}.
        *BATCH*
        is the best size-or-timeout setting for the process fitted to the first half, *BATCH again* another one whenever
        a {WINDOWS}th of that time is over. *Recommended* is the answer of `sluice recommend`, which lets tables that wait to the
        last moment and workers compete with that, and gives a table, which keeps the SLO whatever comes, the preference
        up to {100 * PREMIUM:g} % of the cost; *without premium* it does not. *Rehearsed* is no policy of its own but the one
        that was cheapest in the
        first half among those that surely kept the SLO there (the upper end of the confidence interval)."""),
        "## The winner of each cell",
        paragraph(f"""
        USD per million requests, share of late requests in brackets; **bold** where the SLO is kept. The cheapest that keeps it is
        {spoken([f"{name} in {wins[name]}" for name in ranked])} of {len(found)} cells. The rehearsed choice keeps the SLO in
        {len(kept)} and costs {100 * float(np.median(beyond)):.1f} % more than the winner in the median, {
            100 * max(beyond):.0f} % at
        most."""),
        winners(found),
        "![cost beyond the winner, by policy](figures/policy-zoo.svg)",
        paragraph("""
        A row for each cell, a column for each policy; the colour is the cost over the winner's, grey where the SLO is not
        kept."""),
        "## Why the recommended policy is not always the cheapest",
        paragraph(f"""
        `sluice recommend` answers from a process fitted to the first half, as `sluice fit` chooses it. In
        {len(of["cheapest"])} of {len(found)} cells nothing
        that keeps the SLO is cheaper by more than {100 * NEAR:g} %. The reasons in the others, named in the last column above:"""),
        bullets(*(reason for said, reason in reasons(of, missed, len(found)).items() if of[said])),
        paragraph(f"""
        Against all of them helps a rehearsal: `sluice simulate --policy all` on the past, and the cheapest that surely kept the SLO
        there. It keeps the SLO in {len(kept)} cells, where the recommended policy does in {
            len(found) - missed["recommended"]
        }."""),
        "## What else can be seen",
        bullets(
            f"""Nobody is late *at the last moment* but for cold starts, and it needs no fit. Using up the 5 % that a promise
            of 95 %
            leaves, as BATCH does, is worth {100 * most_saved(found):.1f} % of the cost at most where both keep the SLO; and BATCH
            keeps it in {len(found) - missed["BATCH"]} cells only.""",
            f"""Choosing again window by window keeps it in {len(found) - missed["BATCH again"]} cells: a short window says
            less about
            bursts than a long one, and every choice uses up the promise.""",
            f"""Workers by the hour are part of the winner in {len(by_workers)} cells
            ({spoken(sorted({f"{row.network} on {row.trace}" for row in by_workers}))}), where a core is kept busy. Elsewhere they
            stand idle: on the LLM traces the perceptron's fixed workers cost {spoken(worker_ratios(found), "to")} times what the
            function costs at the last moment.""",
            f"""Autoscaling misses the SLO in {missed["autoscaling"]} cells and pays for half empty workers in the others: these
            bursts last seconds, and a new worker takes {LAG:g} s after three minutes of alarm. No trace here lasts a day, which is
            what it is made for.""",
            f"""Static batches of {STATIC} miss it in {missed["static"]} cells: nobody fills the last one.""",
            f"""No batching keeps the SLO in {len(found) - missed["no batching"]} cells and is the cheapest in
            {wins["no batching"]}.""",
        ),
        "## All figures",
        paragraph("""
        USD per million requests, p95 in ms, share of late requests; a dash where the policy cannot be had for the SLO. **Bold**:
        the cheapest that keeps it."""),
        *tables(found),
    ]
    return "\n\n".join(sections) + "\n"


VERDICTS = ("cheapest", "cold", "family", "fit", "drift")


def reasons(of: dict[str, list[dict[str, Row]]], missed: dict[str, int], n_cells: int) -> dict[str, str]:
    """Why the recommended policy is not the cheapest, by verdict."""
    pairs = [(cell["recommended"], winner(cell)) for cell in of["family"]]
    dearest, instead = max(pairs, key=lambda pair: pair[0].cost / pair[1].cost, default=(None, None))
    most = ""
    if dearest and instead:
        part = 100 * (dearest.cost / instead.cost - 1)
        most = f" At most {part:.0f} % ({dearest.trace}, {dearest.network}, {milliseconds(dearest.slo)}: {instead.policy})."
    late = max((cell["recommended"] for cell in of["fit"]), key=lambda row: row.past_violations, default=None)
    worst = ""
    if late:
        worst = f", in up to {100 * late.past_violations:.1f} % ({late.trace}, {late.network}, {milliseconds(late.slo)})"
    return {
        "cold": f"""*Cold* ({len(of["cold"])}): more than half of what it costs beyond the winner are cold starts, which `recommend`
            does not count unless told `--cold-start-probability`; in a smaller function each costs less.""",
        "family": f"""*Family* ({len(of["family"])}): what is cheaper is not among the tables and workers that are searched.
            *Overflow* runs workers and function together; *early drop* needs fewer workers, as it gives up whom it would answer
            late.{most}""",
        "fit": f"""*Fit* ({len(of["fit"])}): the answer is exact for the fitted process, but late more often than promised on
        the very
            half that was fitted{worst}. A process of a few phases misses what lasts for minutes, and arrivals milliseconds apart.
            With the premium the SLO is kept in {n_cells - missed["recommended"]} cells instead of
            {n_cells - missed["without premium"]}.""",
        "drift": f"""*Drift* ({len(of["drift"])}): the promise was kept in the first half and not in the second. A promise of
            {PERCENTILE:g} % that is used up to the last request leaves nothing for another load.""",
    }


def most_saved(found: Sequence[dict[str, Row]]) -> float:
    """The most that BATCH saves against the last moment, part of the cost."""
    pairs = [(cell["BATCH"], cell["last moment"]) for cell in found]
    return max(1 - one.cost / other.cost for one, other in pairs if one.keeps and other.keeps)


def paragraph(text: str) -> str:
    """The text in lines of the repository's width."""
    return textwrap.fill(" ".join(text.split()), 132, break_long_words=False, break_on_hyphens=False)


def bullets(*texts: str) -> str:
    """A list of paragraphs."""
    wrapped = (
        textwrap.fill(" ".join(text.split()), 132, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for text in texts
    )
    return "\n".join(wrapped)


def spoken(values: Iterable[object], last: str = "and") -> str:
    """Values with commas between and a word before the last."""
    words = [f"{value:g}" if isinstance(value, float | int) else str(value) for value in values]
    return ", ".join(words[:-1]) + f" {last} {words[-1]}" if len(words) > 1 else words[0]


def milliseconds(seconds: float) -> str:
    """As people read them."""
    return f"{1e3 * seconds:.4g} ms"


def worker_ratios(found: Sequence[dict[str, Row]]) -> list[str]:
    """How many times the perceptron's fixed workers cost what the last moment costs on the LLM traces: from least to most."""
    some = [cell for cell in found if cell[CHOSEN].network == "perceptron" and cell[CHOSEN].trace.startswith("LLM")]
    ratios = [cell["fixed workers"].cost / cell["last moment"].cost for cell in some]
    return [f"{min(ratios):.0f}", f"{max(ratios):.0f}"]


def winners(found: Sequence[dict[str, Row]]) -> str:
    """A line for each cell: the winner, the recommended policy, the rehearsed choice."""
    lines = ["| trace | network | SLO, ms | winner | | recommended | rehearsed | why |", "|---|---|---|---|---|---|---|---|"]
    for cell in found:
        best = winner(cell)
        shown = " | ".join([best.policy, figure(best), figure(cell["recommended"]), figure(cell[CHOSEN]), verdict(cell)])
        lines.append(f"| {best.trace} | {best.network} | {1e3 * best.slo:g} | {shown} |")
    return "\n".join(lines)


def figure(row: Row) -> str:
    """Cost and lateness."""
    cost = f"**{row.cost:.4f}**" if row.keeps else f"{row.cost:.4f}"
    return f"{cost} ({100 * row.violations:.1f} %)"


def tables(found: Sequence[dict[str, Row]]) -> Iterator[str]:
    """All policies, a table for each trace and network."""
    for trace, network in product(TRACES, NETWORKS):
        some = [cell for cell in found if cell[CHOSEN].cell[:2] == (trace, network)]
        if not some:
            continue
        slos = " | ".join(f"{milliseconds(cell[CHOSEN].slo)} | p95 | late" for cell in some)
        lines = [
            f"| {trace}, {network} | {slos} |",
            "|---" * (1 + 3 * len(some)) + "|",
        ]
        for policy in some[0]:
            if policy != CHOSEN:
                shown = " | ".join(figures(cell[policy], winner(cell)) for cell in some)
                lines.append(f"| {policy} | {shown} |")
        yield "\n".join(lines)


def figures(row: Row, best: Row) -> str:
    """Cost, p95 in ms and lateness."""
    if np.isnan(row.cost):
        return "- | - | -"
    cost = f"**{row.cost:.4f}**" if row is best else f"{row.cost:.4f}"
    p95 = f"{1e3 * row.p95:.4g}" if np.isfinite(row.p95) else "never"
    return f"{cost} | {p95} | {100 * row.violations:.1f} %"


def draw(rows: Sequence[Row]) -> Figure:
    """Cost over the winner's, by cell and policy."""
    found = cells(rows)
    names = list(found[0])
    ratio = np.array([[cell[name].cost / winner(cell).cost if cell[name].keeps else np.nan for name in names] for cell in found])
    drawing = Figure((8, 0.24 * len(found) + 1.4), layout="constrained")
    ax = drawing.subplots()
    ax.set_facecolor("0.7")
    mesh = ax.imshow(ratio, norm=matplotlib.colors.LogNorm(1, 10), cmap="YlOrRd", aspect="auto", interpolation="none")
    ax.set_xticks(np.arange(len(names)), names, rotation=45, ha="right")
    labels = [f"{row.trace}, {row.network}, {milliseconds(row.slo)}" for row in (cell[CHOSEN] for cell in found)]
    ax.set_yticks(np.arange(len(found)), labels)
    bar = drawing.colorbar(mesh, ax=ax, extend="max", ticks=[1, 2, 5, 10], format="%g")
    bar.set_label("times the winner's cost")
    return drawing


def remade(rows: Sequence[Row], name: str, folder: Path) -> list[Row]:
    """The rows, with those of one trace made anew."""
    fresh = list(run_trace(name, folder))
    found = {row.trace: [other for other in rows if other.trace == row.trace] for row in rows} | {name: fresh}
    return [row for trace in TRACES for row in found.get(trace, [])]


def main() -> None:
    """Run the traces there are, and write the data, the figure and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where the traces are that the project does not ship")
    folder = parser.parse_args().folder
    rows = read() if DATA.exists() else []
    for name, kind in TRACES.items():
        where = EXAMPLES if name == SHIPPED else folder
        if where is not None and (where / kind.file).exists():
            rows = remade(rows, name, where)
            print("ran", name)
    write(rows)
    rows = read()
    matplotlib.rcParams.update({"svg.hashsalt": "policy-zoo", "svg.fonttype": "none", "font.size": 8})
    (DOCS / "figures").mkdir(exist_ok=True)
    draw(rows).savefig(DOCS / "figures" / "policy-zoo.svg", metadata={"Date": None})
    (DOCS / "policy-zoo.md").write_text(page(rows), encoding="utf-8")
    print("wrote", DATA.name, "policy-zoo.md", "policy-zoo.svg")


if __name__ == "__main__":
    main()
