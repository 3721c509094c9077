"""The template's parameters, and whether it takes what a project's settings give them.

CloudFormation refuses a value when all is built and uploaded, and sam leaves out, without a word, what the template has not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import yaml

from sluice.batching.errors import InvalidInput, require

TEMPLATE = Path(__file__).with_name("template.yaml")


def require_known(given: Mapping[str, str], place: str) -> None:
    """Raise ``InvalidInput`` unless these are parameters of the template; ``place`` is where they stand."""
    for name, value in given.items():
        if name not in _parameters():
            near = difflib.get_close_matches(name, _parameters(), n=1)
            asked = f"; did you mean {near[0]}?" if near else ""
            raise InvalidInput(f"{name} in {place}", value, f"a parameter of the template{asked}")


def require_taken(given: Mapping[str, str], place: str) -> None:
    """Raise ``InvalidInput`` unless the template takes the values of those that are its parameters."""
    for name, value in given.items():
        if name in _parameters():
            _require_allowed(f"{name} in {place}", value, _parameters()[name])


@cache
def _parameters() -> dict[str, dict[str, Any]]:
    section = re.search(r"^Parameters:.*?(?=^\S)", TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None  # of the rest no parser knows the tags
    found: dict[str, dict[str, Any]] = yaml.safe_load(section[0])["Parameters"]
    return found


def _require_allowed(field: str, value: str, parameter: Mapping[str, Any]) -> None:
    """As CloudFormation has it: a pattern is of the whole value, or of each of a list."""
    if "AllowedValues" in parameter:
        require(value in parameter["AllowedValues"], field, value, " or ".join(parameter["AllowedValues"]))
    if parameter["Type"] == "Number":
        least, most = parameter.get("MinValue", -inf), parameter.get("MaxValue", inf)
        number = nan
        with suppress(ValueError):
            number = float(value)
        bounds = [f">= {least}"] * (least > -inf) + [f"<= {most}"] * (most < inf)
        require(least <= number <= most and abs(number) < inf, field, value, " and ".join(["a number", *bounds]))
    if "AllowedPattern" in parameter:
        pattern, listed = parameter["AllowedPattern"], parameter["Type"] == "CommaDelimitedList"
        form = f"{'a list of what' if listed else 'what'} is of the form {pattern}"
        allowed = f"{form} ({parameter['Description']})" if "Description" in parameter else form
        for part in map(str.strip, value.split(",")) if listed else [value]:
            require(re.fullmatch(pattern, part) is not None, field, value, allowed)
