"""The figures of the page."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..publishing import Figures, look
from .claims import Findings, winner
from .results import KINDS, MARK, Row
from .settings import ARRIVALS, NETWORKS

LOOK = look("cpu-or-gpu")
COLOURS = {"function": "#1f83c9", "workers": "#8c6d4f", "both": "#d55e00", MARK: "#808080"}
NAMES = ("cpu-or-gpu.svg", "cpu-or-gpu-later.svg")  # under the tighter SLO of each network, and the other


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {name: draw_costs(Findings.of(rows), i) for i, name in enumerate(NAMES)}


def draw_costs(found: Findings, which: int) -> Figure:
    """Cost by rate, a panel for each network and arrivals, under the SLO at a place of each network's."""
    drawing = Figure((8, 2.3 * len(NETWORKS)), layout="constrained")
    panels = drawing.subplots(len(NETWORKS), len(ARRIVALS), sharex=True, sharey="row", squeeze=False)
    for row, (name, network) in zip(panels, NETWORKS.items(), strict=True):
        shown = [cell for arrivals in ARRIVALS for cell in found.lines[name, arrivals, network.slos[which]]]
        lowest, highest = min(winner(cell).cost for cell in shown), max(cell["function"].cost for cell in shown)
        for ax, arrivals in zip(row, ARRIVALS, strict=True):
            slo = network.slos[which]
            line = found.lines[name, arrivals, slo]
            rates = [cell[MARK].rate for cell in line]
            for kind in (MARK, *KINDS):
                style = "--" if kind == MARK else "-"
                ax.loglog(rates, [cell[kind].cost for cell in line], style, color=COLOURS[kind], label=kind, linewidth=1.2)
            best = [winner(cell) for cell in line]
            colours = [COLOURS[row.kind] for row in best]
            ax.scatter(rates, [row.cost for row in best], s=14, c=colours, zorder=3)
            ax.set_title(f"{name}, {arrivals}, 95 % within {1e3 * slo:g} ms")
            ax.set_ylim(0.6 * lowest, 10 * highest)
        row[0].set_ylabel("USD per million requests")
    for ax in panels[-1]:
        ax.set_xlabel("requests/s")
    panels[0][0].legend(fontsize=7)
    return drawing
