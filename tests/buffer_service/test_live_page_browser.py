"""The live page in a real browser, where one is installed (``studies/headless.py`` says which)."""

import asyncio
import itertools
import json
import time

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestClass, Slo
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.page import Buffers, Devices, Door
from sluice.buffer_service.presence import OtherPlan
from studies.headless import browser, find_browser
from tests.buffer_service.conftest import NO_BATCHING, Plans, plan, serving
from tests.buffer_service.test_page_buffers import Known as Company
from tests.buffer_service.test_page_buffers import heard
from tests.buffer_service.test_page_decisions import Journal, entry
from tests.buffer_service.test_page_devices import Known, worker

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a headless Chromium: apt-get install chromium-headless-shell")

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
TABLE = PolicyDocument.of(constructors.size_or_timeout(4, 0.01))
READ = "document.querySelectorAll('section.model').length > 0"
TEXT = "document.body.innerText"
OPEN_ALL = "document.querySelectorAll('section.model details:not([hidden]) > summary').forEach((each) => each.click())"


async def read_again(tab):
    """Not when it is due, but now."""
    await tab.evaluate("document.getElementById('pause').click(), document.getElementById('pause').click()")


def resnet(**more):
    return Plan(model="resnet", function="f", policy=TABLE, slo=Slo(0.5), **more)


async def test_the_page_shows_what_the_buffer_serves_and_goes_on_showing_it(function):
    plans = Plans(resnet(classes=[RequestClass("web", Slo(0.5)), RequestClass("report", Slo(2.0))]))
    async with serving(function, None, plans=plans) as buffer, browser(BROWSER) as tab:
        await asyncio.gather(*(buffer.post("/models/resnet", b"1") for _ in range(8)))
        await tab.open(buffer.url)
        await tab.until(READ)
        text = await tab.evaluate(TEXT)
        assert "Promise kept: 95 % within 500 ms" in text
        assert "A batch of 4 at most leaves as soon as 4 wait, or its oldest request has waited for 10 ms." in text
        assert "class web" in text and plans.plans[0].digest in text
        assert await tab.evaluate("document.getElementById('said').textContent") == "resnet: Promise kept."
        await asyncio.gather(*(buffer.post("/models/resnet", b"1") for _ in range(1192)))
        await read_again(tab)
        await tab.until("document.body.innerText.includes('1,200')")
        assert tab.errors == []


async def test_a_hostile_reason_is_shown_as_it_is_and_runs_nothing(function):
    class Wrong(Plans):
        def documents(self):
            wrong = b'{"model": "resnet", "x": "%s"}' % HOSTILE.encode()
            return super().documents() | {HOSTILE: wrong, "other" + HOSTILE: wrong.replace(b"resnet", b"nobody")}

    async with serving(function, None, plans=Wrong(resnet())) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        text = await tab.evaluate(TEXT)
        assert text.count(HOSTILE) == 3  # the reason of one; the place and the reason of the other
        assert await tab.evaluate("document.title") == "Sluice"
        assert await tab.evaluate("document.querySelectorAll('img').length") == 0
        assert tab.errors == []


@pytest.mark.full
async def test_buffers_that_do_not_follow_the_plan_are_shown_with_their_reason_as_text(function):
    plans = Plans(resnet())
    digest, other = plans.plans[0].digest, OtherPlan("c", "", HOSTILE)
    async with serving(function, None, plans=plans) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        assert " buffers follow" not in await tab.evaluate(TEXT)
        for in_force, shown in (
            (digest, f"1 of 2 buffers follows; b on h follows plan c: {HOSTILE}."),
            ("d", "Of plan d in Redis: "),
        ):
            known = Company(heard("a"), heard("b", resnet=other))
            buffer.service.page._watch._buffers = Buffers(known, {"resnet": in_force}.copy, lambda: 0.0)
            await read_again(tab)
            await tab.until(f"document.body.innerText.includes({json.dumps(shown)})")
        assert await tab.evaluate("document.querySelectorAll('img').length") == 0
        assert tab.errors == []


@pytest.mark.full
async def test_a_fleet_is_shown_with_its_devices_and_what_each_has_loaded_as_text(function):
    well, silent = worker("a", **{HOSTILE: "READY"}), worker("b", silent=9.0, small="READY")
    known = Known(well, silent, worker("c", device=HOSTILE, small="LOADING"))
    async with serving(function, None, plans=Plans(resnet())) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        assert await tab.evaluate("document.querySelector('section.fleet').hidden")
        buffer.service.page._watch._devices = Devices(known, lambda: 0.0)
        await read_again(tab)
        await tab.until("!document.querySelector('section.fleet').hidden")
        rows = (
            "[...document.querySelectorAll('section.fleet tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        assert await tab.evaluate(rows) == [
            [HOSTILE, "1", "1", "nothing"],
            ["gpu", "2", "1", HOSTILE + " 1"],
            ["http://b:8500", "gpu", "✗ silent for 9 s", "small", "nothing", "1", "2 s"],
            ["http://a:8500", "gpu", "✓ well", HOSTILE, "nothing", "1", "2 s"],
            ["http://c:8500", HOSTILE, "✓ well", "nothing", "small", "1", "not told"],
        ]
        assert await tab.evaluate("document.title") == "Sluice" and tab.errors == []


async def test_decisions_are_shown_with_what_they_expected_and_what_came_of_them_as_text(function):
    considered = {"name": HOSTILE, "rehearsed": {"usd_per_million": [1.5, 1.2, 1.8], "late": [0.01, 0.0, 0.02]}, "keeps": True}
    told = {"words": "cheaper " + HOSTILE, "changed": True, "chosen": HOSTILE, "considered": [considered], "alarm": HOSTILE}
    journal = Journal(entry(time.time() - 1.0, model="resnet", **told, saving_usd_per_hour=0.25), leader=HOSTILE)
    async with serving(function, None, plans=Plans(resnet()), journal=journal) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        text = await tab.evaluate(TEXT)
        assert "cheaper " + HOSTILE in text and f"The controller {HOSTILE} leads." in text and "✗ " + HOSTILE in text
        assert "1 % (0 % to 2 %) late, 1.5 USD (1.2 USD to 1.8 USD) a million, at 12.5 requests/s, 0.25 USD saved an hour" in text
        assert await tab.evaluate("document.title") == "Sluice" and tab.errors == []
        await tab.evaluate(OPEN_ALL)
        await tab.until(f"document.body.innerText.includes({HOSTILE + ' (chosen)'!r})")


async def test_what_came_of_a_decision_what_it_was_corrected_by_and_what_others_would_cost_are_shown(function):
    def of(name, digest, usd, keeps=True):
        rehearsed = {"usd_per_million": [usd, usd, usd], "percentile": [0.2, 0.2, 0.2], "late": [0.0, 0.0, 0.0]}
        return {"name": name, "digest": digest, "rehearsed": rehearsed, "keeps": keeps}

    plans = [of("a table", "new", 0.5), of("as it was given", "old", 1.0), of("no batching", "alone", 2.0, keeps=False)]
    more = {"model": "resnet", "considered": plans, "expected": plans[0], "given": "old", "unbatched": "alone", "promise": "p95"}
    cost = {"usd_per_million": 0.52, "expected": {"late": 0.01, "percentile": 0.2, "usd_per_million": [0.5, 0.4, 0.6]}}
    since = {"seconds": 290, "requests": 4000, "arrival_rate": 13.8, "mean_batch_size": 4, "late": 0.02, "percentile": 0.21} | cost
    setting = {"memory_mb": 1769, "batch_size": 4, "batches": 120, "latency": [0.0021, 0.0001], "cost": [-0.03, None]}
    new = entry(time.time() - 1.0, **more, since_last=since, measured_less_predicted=[setting], way=0.0025, bias=0.001)
    journal = Journal(new, entry(time.time() - 4000.0, **more))
    async with serving(function, None, plans=Plans(resnet()), journal=journal) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        await tab.evaluate(OPEN_ALL)
        text = " ".join((await tab.evaluate(TEXT)).split())
        assert (
            "Came of it, at all processes in 4.8 min: 2 % late (expected 1 %), p95 210 ms (expected 200 ms), "
            "0.52 USD a million (expected 0.5 USD (0.4 USD to 0.6 USD) at this rate), 4,000 requests, 13.8 a second."
        ) in text
        assert "1769 4 120 +2.1 ± 0.1 −3" in text and "2.5 ms are spent on the way through the buffer" in text
        assert "an hour without batching, rehearsed" in text and "an hour without batching, predicted" not in text
        assert "2 USD a million; 4 times the plan in force; does not surely keep the promise" in text
        assert (
            "an hour under the plan that somebody gave, rehearsed" in text and "1 USD a million; 2 times the plan in force" in text
        )
        assert tab.errors == []


async def test_a_style_or_a_script_that_is_put_into_the_page_does_not_run(function):
    async with serving(function, NO_BATCHING) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        script = "const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s)"
        await tab.evaluate(script)
        assert await tab.evaluate("document.title") == "Sluice"
        assert any("Content Security Policy" in error for error in tab.errors)


async def test_the_page_is_used_by_keys_and_what_is_open_stays_open(function):
    async with serving(function, None, plans=Plans(resnet(), plan(NO_BATCHING))) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        await tab.press("Tab", 9)
        assert await tab.evaluate("document.activeElement.className") == "skip"
        await tab.press("Tab", 9)
        assert await tab.evaluate("document.activeElement.id") == "pause"
        await tab.press("Enter", 13)
        assert await tab.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        await tab.press("Enter", 13)
        assert await tab.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
        await tab.evaluate("document.querySelectorAll('summary')[3].focus()")
        await tab.press("Enter", 13)
        await read_again(tab)
        readings = "performance.getEntriesByType('resource').length"
        await tab.until(f"{readings} > {await tab.evaluate(readings)}")
        assert await tab.evaluate("[...document.querySelectorAll('details')].map((one) => one.open).indexOf(true)") == 3
        assert await tab.evaluate("document.activeElement.localName") == "summary"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_shows_all_of_it_without_moving_sideways_and_every_text_has_contrast(function, scheme):
    async with (
        serving(function, None, plans=Plans(resnet(classes=[RequestClass("web", Slo(0.5))]))) as buffer,
        browser(BROWSER) as tab,
    ):
        await tab.resize(360, 740, scheme)
        await asyncio.gather(*(buffer.post("/models/resnet", b"1") for _ in range(8)))
        await tab.open(buffer.url)
        await tab.until(READ)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 360
        assert await tab.evaluate(CONTRAST) == []


CONTRAST = """(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())) continue;
    if (node.closest("noscript, script, .skip, .unseen")) continue;
    const style = getComputedStyle(node), color = node.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [light(channels(color)), light(behind(node))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) poor.push(node.textContent.slice(0, 40) + " " + color);
  }
  return poor;
})()"""
"""Texts whose contrast with what is behind them is below 4.5 to 1 (W3C, WCAG 2.2, success criterion 1.4.3)."""


async def test_every_part_of_the_page_has_a_name_for_who_does_not_see_it(function):
    async with serving(function, None, plans=Plans(resnet(), plan(NO_BATCHING))) as buffer, browser(BROWSER) as tab:
        await asyncio.gather(*(buffer.post("/models/resnet", b"1") for _ in range(8)))
        await tab.open(buffer.url)
        await tab.until(READ)
        nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
        named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
        for role in ("region", "image", "button", "link", "table", "navigation", "heading", "figure", "columnheader", "rowheader"):
            assert [name for kind, name in named if kind == role], role
            assert all(name for kind, name in named if kind == role), role
        levels = "[...document.querySelectorAll('h1,h2,h3,h4')].map((one) => Number(one.localName[1]))"
        found = await tab.evaluate(levels)
        assert found[0] == 1 and all(after <= before + 1 for before, after in itertools.pairwise(found))
        ids = await tab.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids))


async def test_a_buffer_that_falls_silent_is_said_to_and_is_read_again_when_it_is_back(function, monkeypatch):
    async def silent(door):
        raise StoreUnavailable("Redis is away")

    async with serving(function, None, plans=Plans(resnet())) as buffer, browser(BROWSER) as tab:
        await tab.open(buffer.url)
        await tab.until(READ)
        with monkeypatch.context() as patched:
            patched.setattr(Door, "status", silent)
            await read_again(tab)
            await tab.until("document.getElementById('said').textContent === 'The buffer does not answer.'")
            assert "503" in await tab.evaluate("document.getElementById('contact').innerText")
        await read_again(tab)
        await tab.until("document.getElementById('contact').innerText.startsWith('As of')")
