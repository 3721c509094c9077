"""What `sluice replay` measured, as its `--out FILE` or its `--json` wrote it."""

from __future__ import annotations

import msgspec
import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.cli.named_files import read_json
from sluice.optimizer.report.evidence import Seen


class _Summary(msgspec.Struct, frozen=True):
    requests: int
    quantiles: list[tuple[float, float]]


def read_measured(path: str) -> Seen:
    """The latencies that a replay measured.

    Raises
    ------
    InvalidInput
        No such file, another document, or a replay in which nothing was answered.
    """
    data = read_json(path, "--measured")
    try:
        summary = msgspec.convert(_summary_of(msgspec.json.decode(data)), _Summary)
    except msgspec.MsgspecError as error:
        allowed = f"what `sluice replay --out FILE` or `--json` wrote, with its quantiles ({error})"
        raise InvalidInput("measured", path, allowed) from None
    levels, seconds = np.array(summary.quantiles).reshape(-1, 2).T
    return Seen("measured", summary.requests, levels, seconds)


def _summary_of(document: object) -> object:
    return document.get("summary", document) if isinstance(document, dict) else document
