"""PyTorch's public names that are here and that are not, as docs/torch-names.md.

python -m tests.framework.names
"""

from __future__ import annotations

import inspect
from pathlib import Path
from textwrap import fill

import torch

import stack.framework as ht

PAGE = Path(__file__).parents[2] / "docs" / "torch-names.md"
SPACES = (
    ("torch", torch, ht),
    ("torch.Tensor", torch.Tensor, ht.Tensor),
    ("torch.nn", torch.nn, ht.nn),
    ("torch.nn.functional", torch.nn.functional, ht.nn.functional),
    ("torch.nn.init", torch.nn.init, ht.nn.init),
    ("torch.optim", torch.optim, ht.optim),
    ("torch.optim.lr_scheduler", torch.optim.lr_scheduler, ht.optim.lr_scheduler),
    ("torch.utils.data", torch.utils.data, ht.utils.data),
    ("torch.distributions", torch.distributions, ht.distributions),
    ("torch.func", torch.func, ht.func),
)


def public(space: object) -> list[str]:
    """Names that a user is meant to call: without modules and underscores."""
    return sorted(
        name
        for name in dir(space)
        if not name.startswith("_") and not inspect.ismodule(getattr(space, name, None))
    )


def page() -> str:
    parts = ["# PyTorch's names", "", "Written by `python -m tests.framework.names`.", ""]
    parts += ["| where | here | of PyTorch's |", "| --- | --- | --- |"]
    absent = {}
    for title, theirs, ours in SPACES:
        names = public(theirs)
        absent[title] = [name for name in names if not hasattr(ours, name)]
        parts.append(f"| `{title}` | {len(names) - len(absent[title])} | {len(names)} |")
    for title, names in absent.items():
        parts += ["", f"## Not here: `{title}`", "", fill(", ".join(names), 120)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
