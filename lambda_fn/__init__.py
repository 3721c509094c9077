"""The function: a model behind the wire contract, and what the class of a model may name (docs/models.md)."""

from .interface import ItemError, Reply, TensorSpec

__all__ = ["ItemError", "Reply", "TensorSpec"]
