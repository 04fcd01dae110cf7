"""The `torch.distributed` backend "hal": collectives of the stack under code written for PyTorch.

`import torch` finds it by its entry point; `import stack.bridge.torch` and `register()` do where
hal-accel is not installed as a distribution. Then

    torch.distributed.init_process_group("hal", ...)
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

NAME = "hal"


def register() -> None:
    """Make the backend known to torch, for tensors of the host. A second call does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(place: Any, options: Any) -> Any:
    # torch imports this package at its own import; the rest is for those who use it.
    from stack.bridge.torch.process_group import create  # noqa: PLC0415

    return create(place)
