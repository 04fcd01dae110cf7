"""PyTorch on the stack: the device "hal", and the `torch.distributed` backend "hal".

`import torch` finds both by its entry point; `import stack.bridge.torch` and `register()` do where
hal-accel is not installed as a distribution. Then

    model.to("hal")
    torch.distributed.init_process_group("hal", ...)

Under `hal run` nothing else needs to be said; elsewhere torch is told where its ranks meet, as its
own launcher does it.
"""

# torch imports this at its own import, so all else is imported by those who use it.
# ruff: noqa: PLC0415

from __future__ import annotations

import warnings
from typing import Any

NAME = "hal"


def register() -> None:
    """Make device and backend known to torch, and the job that this process is a rank of. A second
    call does nothing. What is wrong in the environment, or in torch's version, is a warning here,
    and an error at the first use: `import torch` goes on."""
    import torch.distributed as dist

    from stack.bridge.torch import version

    fits = version.fits()
    if fits:
        from stack.bridge.torch.device import register_device

        register_device()
    else:
        version.refuse_later()
    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    made = _create if fits else version.refuse
    dist.Backend.register_backend(NAME, made, extended_api=True, devices=["cpu", NAME])
    if not fits:
        return
    from hal.core.errors import HalError
    from stack.comm.world import World

    try:
        world = World.present()
    except HalError as error:
        warnings.warn(f"this process is no rank of a job: {error}", RuntimeWarning, stacklevel=2)
        return
    if world:
        from stack.bridge.torch.rendezvous import meet_in_job

        meet_in_job(world)


def _create(place: Any, options: Any) -> Any:
    from stack.bridge.torch.process_group import create

    return create(place)


def backend(graph: Any, examples: Any, **options: Any) -> Any:
    """What `torch.compile(backend="hal")` calls: see `stack.bridge.torch.compiled`."""
    from stack.bridge.torch import version

    if not version.fits():
        version.refuse()
    from stack.bridge.torch import compiled

    return compiled.backend(graph, examples, **options)


def stats() -> dict[str, Any]:
    """What was done for tensors of the device, by "hal:0": how many operations were recorded
    ("operations"), for how many of them graph nodes were built ("lowered"), how many plans were
    compiled for their numbers alone ("compiled") and with numbers as data ("generalised"), and how
    many were run ("runs"). "host" has how often an operator ran on the host."""
    from stack.bridge.torch import kernels

    counts: dict[str, Any] = {f"{NAME}:{i}": tape.counted() for i, tape in kernels.tapes().items()}
    return {**counts, "host": dict(kernels.host_calls)}
