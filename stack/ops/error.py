"""The one error of graph IR."""

from __future__ import annotations


class GraphError(TypeError):
    """An operation's operands, attributes or type break its rule. The message names the operation,
    the types and what to do."""
