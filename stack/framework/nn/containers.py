"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from stack.framework.nn.module import Module


class ModuleList(Module):
    """A list of modules; their names are their positions."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        setattr(self, str(len(self)), module)

    def __len__(self) -> int:
        return len(list(self.named_children()))

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, place: int) -> Module:
        return list(self)[place]


class Sequential(ModuleList):
    """Modules of which each takes what the one before gave."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: dict[str, Module]) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)

    def __getitem__(self, name: str) -> Module:
        return dict(self.named_children())[name]
