"""The `torch.distributed` backend "hal": collectives of the stack under code written for PyTorch.

`import torch` finds it by its entry point; `import stack.bridge.torch` and `register()` do where
hal-accel is not installed as a distribution. Then

    torch.distributed.init_process_group("hal", ...)

Under `hal run` nothing else needs to be said; elsewhere torch is told where its ranks meet, as its
own launcher does it.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from stack.comm.world import World

NAME = "hal"


def register() -> None:
    """Make the backend known to torch, for tensors of the host, and the job that this process is a
    rank of. A second call does nothing. Raises InvalidCall where the environment tells half of it.
    """
    if NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    if world := World.present():
        from stack.bridge.torch.rendezvous import meet_in_job  # noqa: PLC0415 - as below

        meet_in_job(world)


def _create(place: Any, options: Any) -> Any:
    # torch imports this package at its own import; the rest is for those who use it.
    from stack.bridge.torch.process_group import create  # noqa: PLC0415

    return create(place)
