"""CloudFormation's YAML, without the linter's loader, which brings algebra and graphs along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """The functions' short forms (`!Sub`) as their long ones (`Fn::Sub`)."""


def _function(loader: _Loader, name: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        told: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        told = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        told = loader.construct_mapping(node, deep=True)
    if name == "GetAtt" and isinstance(told, str):
        told = told.split(".", 1)
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": told}


_Loader.add_multi_constructor("!", _function)


def load(path: Path) -> dict[str, Any]:
    """The template as one of long forms alone."""
    body: dict[str, Any] = yaml.load(path.read_text(), _Loader)
    return body
