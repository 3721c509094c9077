"""The page docs/modulated-arrivals.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..markdown import page_of, table
from .claims import SINGLE, above, by_setting, median_and_most, pick, saved
from .computation import N_REQUESTS, N_RUNS, TRACE_BLOCKS
from .results import Row
from .settings import ENERGIES, LARGEST, LARGEST_LOAD, SHOWN_STAY, SMALL, STAYS


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    return page_of(
        [
            "# Arrivals with phases: what a table per phase saves",
            *what_is_asked(),
            *what_is_compared(rows),
            *example(rows),
            *where_it_saves(rows),
            *quiet_phase_and_overload(rows),
            *real_trace(rows),
            "## The filter",
            "![a second of arrivals, the belief and the table in force](figures/modulated-filter.svg)",
            """
            Arrivals in proportion 8 : 2 with phases of 50 ms at a load of 0.3: above each arrival, and the busy phase shaded;
            below the probability of the busy phase that the filter gives, which rises with each arrival and falls in each
            silence. The likeliest phase changes where it passes one half. A probability of 0.8 is right in 80 % of
            the cases (a test).""",
            *of_ones_own(),
        ]
    )


def what_is_asked() -> list[str]:
    """The server and its arrivals, in words."""
    return [
        """
        Made by `python -m studies.modulated_arrivals --compute` from the data that it leaves in
        [modulated-arrivals.csv](../studies/data/modulated-arrivals.csv); a test makes this page again from the data, and some of
        the data from the models.""",
        f"""
        The server is that of the SMDP papers, l(b) = 1.0524 + 0.3051 b ms, batches of up to {LARGEST}, and the cost is
        theirs, mean latency in ms plus mean power in W. A batch takes 19.6 mJ, and 19.9 mJ for each request in it; or ten
        times as much for itself (*dear batch*: an invocation that is paid for, a model that is loaded). Arrivals are an
        MMPP(2): a busy phase that lasts `stay` in the mean and a quiet one, with rates in the proportion 8 : 2 or 1 : 0,
        both phases lasting equally long, or 80 : 1, the quiet one eight times as long. The `load` is that of the mean
        rate, of 80 : 1 at most {LARGEST_LOAD["80 : 1"]:g}: beyond, the queue remembers a burst for longer than a run lasts.""",
    ]


def what_is_compared(rows: Sequence[Row]) -> list[str]:
    """The policies, and how far their simulations are from their exact costs."""
    known = [row for row in rows if not np.isnan(row.exact)]
    z = np.array([row.z for row in known])
    return [
        "## What is compared",
        "- **seen**: the optimal tables (docs/model.md, 4.5) on a server that sees the phase: the bound.\n"
        "- **filtered**: the same tables, that of the likeliest phase in force, the phase followed from the gaps alone.\n"
        "- **Poisson**: the one table that is optimal under Poisson arrivals of the mean rate.\n"
        "- **control limit**: wait for Q requests, then take all; the best Q under these very arrivals.\n"
        "- **greedy**: never wait.",
        f"""
        All but the filtered one are computed exactly. What the filter costs beyond the bound is the difference of two
        simulations of the same {N_REQUESTS} arrivals, {N_RUNS} times over, after ± its standard error. The simulations of
        the others are the check of the exact figures: of {len(known)} simulated costs,
        {100 * np.mean(np.abs(z) > 2):.1f} % are further than 2 standard errors from the exact one, the furthest
        {np.abs(z).max():.1f} (errors are estimated from {N_RUNS} runs; policies of a setting share their arrivals).""",
    ]


def example(rows: Sequence[Row]) -> list[str]:
    """Two settings in full."""
    some = by_setting(pick(rows, group="example"))
    return [
        "## An example",
        f"""
        Batches of up to {SMALL}, phases of 50 ms, μ the rate of full batches. The busy phase may overload the server by
        itself; the tail of the tables is exact there too. One table is nearly as good as two in both: a table has the
        number waiting for its argument, and that tells most of what the phase would. Knowing the phase saves
        {" and ".join(f"{percent(above(setting, 'Poisson'))} %" for setting in some)} of the Poisson policy's cost,
        guessing it {" and ".join(f"{percent(saved(setting, ('Poisson',)))} %" for setting in some)}.""",
        cost_table(pick(rows, group="example")),
    ]


def where_it_saves(rows: Sequence[Row]) -> list[str]:
    """The grid, and what tells where it saves from where it does not."""
    grid = pick(rows, group="grid")
    some = {energy: by_setting(pick(grid, energy=energy)) for energy in ENERGIES}
    poisson, poisson_most = median_and_most(some["papers'"], ("Poisson",))
    single, single_most = median_and_most(some["papers'"], SINGLE)
    dear_poisson, dear_poisson_most = median_and_most(some["dear batch"], ("Poisson",))
    dear_single, dear_single_most = median_and_most(some["dear batch"], SINGLE)
    everything = [setting for settings in some.values() for setting in settings]
    lost = [setting for setting in everything if saved(setting, SINGLE) < 0]
    short = [setting for setting in lost if setting["seen"].stay == min(STAYS)]
    busy = [setting for setting in everything if setting["seen"].load >= 0.5]
    return [
        "## Where it saves",
        f"""
        Cost of the bound, and of the policies beyond it in %. With the papers' energies the filtered tables save
        {percent(poisson)} % of the Poisson policy's cost in the median over the
        settings and {percent(poisson_most)} % at most; of the cheapest single table's
        {percent(single)} % and {percent(single_most)} %. Where
        a batch is dear it is {percent(dear_poisson)} % and
        {percent(dear_poisson_most)} %, {percent(dear_single)} % and
        {percent(dear_single_most)} %. *Right* is the share of the time in which the likeliest phase is
        the true one.""",
        "The papers' energies:",
        grid_table(pick(grid, energy="papers'")),
        "A dear batch:",
        grid_table(pick(grid, energy="dear batch")),
        "![cost beyond the bound against the load](figures/modulated-saving.svg)",
        """
        It saves where three things come together. Waiting must pay, else all tables are greedy (a load of 0.05 at the
        papers' energies). The load must be low: under a high one the queue is long in the busy phase and short in the quiet
        one, and tells the phase by itself. And the quiet phase must be so quiet that to wait there for the requests that
        the busy phase would bring in a moment takes long: then the Poisson policy holds the last requests of a burst
        until the next burst comes, and greedy forgoes the batches within it.""",
        f"""
        It does not save where the phase cannot be told. In {len(lost)} of {len(everything)} settings one table for all
        phases costs less than filtered ones, in {len(short)} of these the phases last {1e3 * min(STAYS):g} ms, a few
        arrivals; the likeliest phase is then a poor summary of what is known. From a load of 0.5 on nothing beyond
        {percent(max(saved(setting, SINGLE) for setting in busy))} % is saved of the cheapest single table.""",
    ]


def quiet_phase_and_overload(rows: Sequence[Row]) -> list[str]:
    """What a mean hides, and the settings whose busy phase overloads the server."""
    shown = [row for row in pick(rows, group="grid", energy="papers'", stay=SHOWN_STAY) if 0.1 <= row.load <= 0.3]
    return [
        "## The requests of the quiet phase",
        f"""
        A mean hides that few requests bear it. The 99th percentile of the latency in ms, papers' energies, stay of
        {1e3 * SHOWN_STAY:g} ms; tables of least cost, so greedy has shorter ones where it costs more power.""",
        latency_table(shown),
        "## A phase that overloads the server",
        grid_table(pick(rows, group="overload")),
        """
        The backlog of the busy phase makes the cost, and no table serves it faster; a control limit that was chosen with
        these arrivals in mind has next to all that can be had.""",
    ]


def real_trace(rows: Sequence[Row]) -> list[str]:
    """Each half of a trace under the policies of the other."""
    halved = by_setting(pick(rows, group="trace"))
    clear = [s for s in halved if s["filtered, MMPP(2)"].excess < -2 * s["filtered, MMPP(2)"].excess_error]
    return [
        "## A real trace",
        f"""
        The [trace of a code-generation service](../sluice/local/traces/README.md), so much faster that the mean load is as
        said, is cut in the middle of its time. Every policy is made for the arrivals of one half and run over the other,
        both ways; costs are relative to the Poisson policy's, in %, ± the standard error of the paired difference over
        {2 * TRACE_BLOCKS} blocks of successive requests. MMPP(2) is the likelihood fit (two phases), MAP what `sluice fit`
        chooses (here sixteen, most of them stages of Erlang gaps). The control limit is the best one in hindsight, for each
        half by itself, which nobody can have.""",
        trace_table(pick(rows, group="trace")),
        f"""
        In {len(clear)} of {len(halved)} lines the filtered tables of the MMPP(2) are cheaper by more than two standard
        errors. Bursts of this trace are short and dense and its silences long, the case in which phases pay; the load at
        which they stop to pay is the same as above. At a load of 0.05 and the papers' energies the two phases fitted to one
        half are too coarse for the other and cost more than never waiting, which is what Poisson comes to there.""",
    ]


def grid_table(rows: Sequence[Row]) -> str:
    """A line for each setting: the bound, and what the policies cost beyond it in %."""
    mixed = len({row.energy for row in rows}) > 1
    lines = []
    for setting in by_setting(rows):
        seen, filtered = setting["seen"], setting["filtered"]
        beyond = f"{percent(above(setting, 'filtered'))} ± {percent(100 * filtered.excess_error / seen.exact)}"
        others = [percent(above(setting, policy)) for policy in SINGLE]
        what = [seen.process, f"{1e3 * seen.stay:g}", f"{seen.load:.3g}", f"{seen.exact:.2f}"]
        lines.append([*[seen.energy] * mixed, *what, beyond, *others, f"{100 * filtered.right:.0f}"])
    header = ["phases", "stay, ms", "load", "seen", "filtered", "Poisson", "control limit", "greedy", "right, %"]
    return table([*["energy"] * mixed, *header], lines)


def of_ones_own() -> list[str]:
    """How to get tables, and a plan, for arrivals of one's own."""
    return [
        "## Of one's own arrivals",
        """\
```sh
sluice smdp --profile profile.json --memory 1769 --energy 0.5,0.05 --w1 1000 --mmpp2 300,40,2,2 --out tables.json
sluice simulate --profile profile.json --memory 1769 --mmpp2 300,40,2,2 --servers 1 --policy tables.json --policy greedy:8
sluice smdp --profile profile.json --memory 1769 --energy 0.5,0.05 --w1 1000 --mmpp2 300,40,2,2 --out plan.json \\
  --model mlp --function http://127.0.0.1:8500
```""",
        """
        The first says what the tables cost where the phase is seen, where it is guessed (simulated), and what the best one table
        found for all phases costs; `tables.json` holds a table for each phase with D0 and D1 of the arrivals, by which the phase
        is guessed. The second runs them under the filter; so does a program of one's own,
        `read_phase_tables(data).schedule(times)` of `sluice.optimizer.smdp`. A buffer follows one table a queue and no filter: the
        plan that the third writes holds the one table for all phases.

        `profile.json` is what `sluice profile` wrote. Where its means fall with the batch size by no more than their error, the
        nearest ones in order are taken, and a note says which.""",
    ]


def cost_table(rows: Sequence[Row]) -> str:
    """A line for each setting and policy: the cost computed and simulated, and the latencies."""
    lines = []
    for setting in by_setting(rows):
        for name, row in setting.items():
            exact = "" if np.isnan(row.exact) else f"{row.exact:.3f}"
            costs = [exact, f"{row.simulated:.3f} ± {row.error:.3f}"]
            lines.append([row.process if name == "seen" else "", name, *costs, f"{1e3 * row.latency:.2f}", f"{1e3 * row.p99:.1f}"])
    return table(["phases", "policy", "exact", "simulated", "mean latency, ms", "p99, ms"], lines)


def latency_table(rows: Sequence[Row]) -> str:
    """The 99th percentile of the latency by policy, ms."""
    names = ("seen", "filtered", *SINGLE)
    lines = [
        [setting["seen"].process, f"{setting['seen'].load:g}", *(f"{1e3 * setting[name].p99:.3g}" for name in names)]
        for setting in by_setting(rows)
    ]
    return table(["phases", "load", *names], lines)


def trace_table(rows: Sequence[Row]) -> str:
    """What the policies cost on the trace beyond the Poisson policy, in %."""
    names = [name for name in dict.fromkeys(row.policy for row in rows) if name != "Poisson"]
    lines = []
    for setting in by_setting(rows):
        poisson = setting["Poisson"]
        beyond = [(100 * setting[n].excess / poisson.simulated, 100 * setting[n].excess_error / poisson.simulated) for n in names]
        cells = [f"{excess:+.1f} ± {error:.1f}" for excess, error in beyond]
        lines.append([poisson.energy, f"{poisson.load:g}", f"{poisson.simulated:.2f}", *cells])
    return table(["energy", "load", "Poisson", *names], lines)


def percent(value: float) -> str:
    """Two digits that mean something."""
    return f"{value:.0f}" if abs(value) >= 9.5 else f"{value:.1f}" if abs(value) >= 0.95 else f"{abs(value):.2f}"
