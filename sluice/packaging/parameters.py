"""The template's parameters, and whether it takes what a project's settings give them; CloudFormation asks only when it deploys."""

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


def require_taken(given: Mapping[str, str], place: str) -> None:
    """Raise ``InvalidInput`` unless the template has all these parameters and takes their values; ``place`` is where they stand."""
    for name, value in given.items():
        field = f"{name} in {place}"
        if name not in _parameters():
            near = difflib.get_close_matches(name, _parameters(), n=1)
            asked = f"; did you mean {near[0]}?" if near else ""
            raise InvalidInput(field, value, f"a parameter of the template{asked}")
        _require_allowed(field, value, _parameters()[name])


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
        pattern = parameter["AllowedPattern"]
        for part in value.split(",") if parameter["Type"] == "CommaDelimitedList" else [value]:
            require(re.fullmatch(pattern, part.strip()) is not None, field, value, f"what is of the form {pattern}")
