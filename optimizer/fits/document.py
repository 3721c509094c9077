"""The door of the room: a fit as the arrivals document that others read."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sluice.batching.documents import ArrivalDocument
from sluice.optimizer.fits.arrival_fit import ArrivalFit, Candidate
from sluice.optimizer.traces.record import recorded_us
from sluice.optimizer.traces.stationarity import Stationarity


def arrival_document(fit: ArrivalFit, stationarity: Stationarity | None = None) -> ArrivalDocument:
    """The document of a fit.

    ``fitted_from`` tells of the trace and how many gaps were used; with ``stationarity``, the judgement of the trace, also how the
    trace was read, its autocorrelation by lag and dispersion by window, and the judgement. ``goodness`` holds ``wait_error`` and
    ``wait_p95_error`` (area and p95 of ``gate``, on a grid other than that of the choice), ``chosen``, ``why``, and a line for each
    candidate under ``tried``. ``without`` has the processes without each block of the trace (``blocks``), ``recorded_us`` its
    arrivals (``traces.record``).
    """
    document = fit.arrivals.document(_fitted_from(fit, stationarity), _goodness(fit), fit.without)
    return replace(document, recorded_us=recorded_us(fit.trace))


def _fitted_from(fit: ArrivalFit, stationarity: Stationarity | None) -> dict[str, Any]:
    trace, seen = fit.trace, fit.trace.statistics()
    told: dict[str, Any] = {
        "source": trace.source,
        "n": len(trace),
        "duration": trace.duration,
        "scv": seen.scv,
        "skewness": seen.skewness,
        "fit": fit.best.name,
        "gaps_used": fit.n_gaps,
    }
    if stationarity is not None:
        told |= {
            "reading": trace.reading,
            "arrival_rate": seen.arrival_rate,
            "autocorrelation": list(seen.autocorrelation.items()),
            "dispersion": list(seen.dispersion.items()),
            "stationarity": stationarity.record(),
        }
    return told


def _goodness(fit: ArrivalFit) -> dict[str, Any]:
    best, error = fit.best, fit.error
    goodness: dict[str, Any] = {
        "wait_error": error.area if error else None,
        "wait_p95_error": error.p95 if error else None,
        "wait_p95_worst": error.worst_p95 if error else None,
        "wait_grid": list(fit.wait_grid),
        "log_likelihood_per_gap": best.log_likelihood / best.n_gaps,
        "bic": best.bic,
        "chosen": best.name,
        "why": fit.why,
    }
    if fit.note:
        goodness["note"] = fit.note
    return goodness | {"tried": [_line(candidate) for candidate in fit.tried]}


def _line(candidate: Candidate) -> dict[str, Any]:
    line: dict[str, Any] = {
        "fit": candidate.name,
        "phases": candidate.arrivals.n_phases,
        "n_parameters": candidate.n_parameters,
        "log_likelihood": candidate.log_likelihood,
        "bic": candidate.bic,
        "wait_error": candidate.error.area if candidate.error else None,
        "wait_p95_error": candidate.error.p95 if candidate.error else None,
    }
    if candidate.convergence:
        line |= {
            "converged": candidate.convergence.converged,
            "iterations": candidate.convergence.iterations,
            "residual": candidate.convergence.residual,
        }
    if candidate.note:
        line["note"] = candidate.note
    return line
