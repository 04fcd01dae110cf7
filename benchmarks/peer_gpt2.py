"""Worker: GPT-2 of `transformers`: `python -m benchmarks.peer_gpt2 DTYPE {eager,compile} [DEVICE]`.

The program is one for all devices: PyTorch's own ("cpu", without one), or "hal".
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping

import torch
import transformers
from torch import nn

from benchmarks import gpt2
from benchmarks.machine import cores
from benchmarks.serving import serve

DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"


def prepare() -> Callable[[], float]:
    dtype, mode = sys.argv[1:3]
    torch.set_num_threads(cores())
    torch.manual_seed(0)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config).to(DEVICE)
    tokens, targets = (torch.from_numpy(part).to(DEVICE) for part in gpt2.batch())
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=gpt2.RATE, weight_decay=gpt2.WEIGHT_DECAY, fused=True
    )
    backend = "inductor" if DEVICE == "cpu" else DEVICE
    run = torch.compile(model, backend=backend) if mode == "compile" else model

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype != "float32"):
            logits = run(tokens).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), gpt2.CLIP)
        optimizer.step()
        return float(loss.item())

    return step


def counts() -> Mapping[str, int]:
    """The most memory that the process had; and that the device counted, if it is one of ours."""
    found = {"resident_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if DEVICE != "cpu":
        from stack.bridge.torch import kernels  # noqa: PLC0415  (not in PyTorch's own process)

        found["peak_nbytes"] = kernels.tape_of(0).engine.device.stats("").peak_nbytes
    return found


if __name__ == "__main__":
    serve(prepare, counts)
