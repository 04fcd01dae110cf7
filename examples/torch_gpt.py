"""Train a small GPT written for PyTorch; nothing here knows HAL but the device's name.

    pip install 'hal-accel[cpu]' torch==2.13.0
    python examples/torch_gpt.py --device cpu
    HAL_DEVICES=cpu:0 python examples/torch_gpt.py --device hal
    HAL_DEVICES=opencl:0 python examples/torch_gpt.py --device hal --compile

The text is the source of Python's own `argparse`, byte by byte.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 2, 64, 16


class Block(nn.Module):
    """A causal transformer layer: (B, T, WIDTH) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        split = self.qkv(self.before(x)).view(b, t, 3, HEADS, WIDTH // HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.feed(self.between(x))


class Model(nn.Module):
    """Logits (B, T, 256) of the next byte, for bytes (B, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.byte(tokens) + self.place(places))))


def train(device: str, steps: int, compiled: bool) -> None:
    torch.manual_seed(0)
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1)
    forward = torch.compile(model, backend="hal") if compiled else model
    for step in range(1, steps + 1):
        begins = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1))
        rows = text[begins + torch.arange(CONTEXT + 1)].to(device)
        loss = F.cross_entropy(forward(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print(f"step {step}: loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="hal", help="cpu, hal, hal:1, ... (hal)")
    parser.add_argument("--steps", type=int, default=100, help="of training (100)")
    parser.add_argument("--compile", action="store_true", help='by torch.compile, backend="hal"')
    options = parser.parse_args()
    train(options.device, options.steps, options.compile)
