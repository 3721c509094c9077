"""How a command is told of several applications: ``--class NAME:ARRIVALS:SLO`` for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import click

from sluice.batching.errors import InvalidInput
from sluice.cli.arrival_options import ARRIVALS
from sluice.cli.class_arrivals import OPTION, read_classes
from sluice.cli.given import require_none_given
from sluice.cli.groups import Command
from sluice.cli.slo_options import read_slos
from sluice.optimizer.recommend import Application, Slo
from sluice.optimizer.recommend.sharing import ONE_SIZE

FORM = "NAME:ARRIVALS:SLO, as in web:50:p95=200ms; the arrivals are a rate (requests/s), an arrivals document or a trace"


def class_option(command: Command) -> Command:
    """``--class``, once for each application; the command gets ``applications: tuple[Application, ...]``, none without it."""

    @click.option(
        OPTION,
        "class_texts",
        multiple=True,
        metavar="NAME:ARRIVALS:SLO",
        help="An application with a promise of its own, in the place of arrivals and --slo: its arrivals a rate, an arrivals"
        " document, or a trace, which is fitted; its SLO as --slo has it; repeated, one each.",
    )
    @wraps(command)
    def with_classes(*, class_texts: tuple[str, ...], **others: Any) -> Any:
        if class_texts:
            beside = f"none beside {OPTION}"
            require_none_given(ARRIVALS, f"{beside}, which has those of each application")
            require_none_given(("slo_texts", "percentile"), f"{beside}, which has that of each application")
            require_none_given(("sizes", "size_column"), f"{beside}: {ONE_SIZE}")
            if others["objective"] != "cost":  # which would ask for --max-cost, that applications cannot have
                require_none_given(("objective",), f"cost beside {OPTION}")
        return command(applications=read_applications(class_texts), **others)

    return with_classes


def read_applications(texts: Sequence[str]) -> tuple[Application, ...]:
    """The applications in the order given.

    Raises
    ------
    InvalidInput
        Another form; a class twice; arrivals that cannot be read; no SLO.
    """
    parts = [text.rpartition(":") for text in texts]
    for text, (arrivals, _, slo) in zip(texts, parts, strict=True):
        if ":" not in arrivals or not slo:
            raise InvalidInput(OPTION, text, FORM)
    classes = read_classes([arrivals for arrivals, _, _ in parts])
    slos = [_slo(text, slo) for text, (_, _, slo) in zip(texts, parts, strict=True)]
    return tuple(Application(name, of.process, slo, of.recorded) for (name, of), slo in zip(classes.items(), slos, strict=True))


def _slo(text: str, slo: str) -> Slo:
    """The SLO at the end of ``text``."""
    try:
        return read_slos([slo])[0]
    except InvalidInput as error:
        raise InvalidInput(OPTION, text, f"NAME:ARRIVALS:SLO, the SLO {error.allowed}") from None
