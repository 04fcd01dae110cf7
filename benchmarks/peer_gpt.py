"""Worker: the same GPT in PyTorch. `python -m benchmarks.peer_gpt DTYPE {eager,compile} [DEVICE]`.

The program is one for all devices: PyTorch's own ("cpu", without one), or "hal".
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import gpt
from benchmarks.machine import cores
from benchmarks.serving import serve

DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each added to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        width = gpt.WIDTH
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        B, T, C = x_BTC.shape
        qkv = self.qkv(self.norm1(x_BTC)).reshape(B, T, 3, gpt.HEADS, C // gpt.HEADS)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        y_BHTD = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.out(y_BHTD.transpose(1, 2).reshape(B, T, C))
        hidden = F.gelu(self.up(self.norm2(x_BTC)), approximate="tanh")
        return x_BTC + self.down(hidden)


class GPT(nn.Module):
    """The loss of targets (B, T) after inputs (B, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(gpt.VOCABULARY, gpt.WIDTH)
        self.position = nn.Embedding(gpt.CONTEXT, gpt.WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(gpt.LAYERS)])
        self.norm = nn.LayerNorm(gpt.WIDTH)
        self.head = nn.Linear(gpt.WIDTH, gpt.VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                residual = name.endswith(("out.weight", "down.weight"))
                std = 0.02 / (2 * gpt.LAYERS) ** 0.5 if residual else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        x_BTC = self.token(tokens_BT) + self.position.weight[: tokens_BT.shape[1]]
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits = self.head(self.norm(x_BTC))
        return F.cross_entropy(logits.reshape(-1, gpt.VOCABULARY), targets_BT.reshape(-1))


def prepare() -> Callable[[], float]:
    dtype, mode = sys.argv[1:3]
    torch.set_num_threads(cores())
    torch.manual_seed(0)
    model = GPT().to(DEVICE)
    tokens, targets = (torch.from_numpy(part).to(DEVICE) for part in gpt.batch())
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": gpt.WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=gpt.RATE, betas=gpt.BETAS, fused=True)
    backend = "inductor" if DEVICE == "cpu" else DEVICE
    loss_of = torch.compile(model, backend=backend) if mode == "compile" else model

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype != "float32"):
            loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def counts() -> Mapping[str, int]:
    """The most memory that the process had; and that the device counted, if it is one of ours."""
    found = {"resident_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if DEVICE != "cpu":
        from stack.bridge.torch import kernels  # noqa: PLC0415  (not in PyTorch's own process)

        stats = kernels.tape_of(0).engine.device.stats("")
        found |= {"peak_nbytes": stats.peak_nbytes, "allocations": stats.allocations}
    return found


if __name__ == "__main__":
    serve(prepare, counts)
