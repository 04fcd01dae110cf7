"""Four models on the device "hal" beside PyTorch's CPU device.

    python -m benchmarks.torch_models [models]
    python -m benchmarks.torch_models lengths

nanoGPT, and of `transformers` (which has to be installed) a Llama, a BERT and a ResNet, in small
random configurations, train five steps of AdamW with clipped gradients, eagerly and under
`torch.compile(backend="hal")`, on the device that HAL_DEVICES names. Prints how far the losses are
at most from PyTorch's, whether dropout is equal eagerly and compiled, and what ran on the host.
`lengths`: the Llama under `torch.compile(dynamic=True)` with 32 lengths, the graphs that PyTorch
made and what was compiled for them, and the gradients' distance from PyTorch's.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

import stack.bridge.torch as bridge
from stack.bridge.torch import kernels
from tests.bridge import torch_models

STEPS = 5
DROPOUT = 0.1


class Language(nn.Module):
    """A model of tokens, and the loss of each place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.inner(input_ids=tokens).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Images(nn.Module):
    """A model of images, and its loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.inner(pixel_values=images, labels=labels).loss


SIZES = {
    "vocab_size": 65,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def _llama(dropout: float) -> nn.Module:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, attention_dropout=dropout)
    return Language(transformers.LlamaForCausalLM(config))


def _bert(dropout: float) -> nn.Module:
    config = transformers.BertConfig(
        **SIZES, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    return Language(transformers.BertForMaskedLM(config))


def _resnet(dropout: float) -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10
    )
    return Images(transformers.ResNetForImageClassification(config))


MODELS: dict[str, Callable[[float], nn.Module]] = {
    "nanoGPT": lambda dropout: torch_models.GPT(dropout=dropout),
    "Llama": _llama,
    "BERT": _bert,
    "ResNet": _resnet,
}


def losses(model: nn.Module, name: str, device: str, compiled: bool = False) -> list[float]:
    """Those of the model's copy on a device, which draws from an equal seed each time."""
    torch.manual_seed(1)
    if name == "ResNet":
        batch = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    else:
        batch = torch.randint(65, (2, 16)), torch.randint(65, (2, 16))
    inputs = [x.to(device) for x in batch]
    model = copy.deepcopy(model).to(device)
    run = torch.compile(model, backend="hal") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run(*inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen.append(loss.item())
    return seen


def lengths() -> None:
    torch.manual_seed(0)
    model = _llama(0.0)
    twin = copy.deepcopy(model).to("hal")
    fast = torch.compile(twin, backend="hal", dynamic=True)
    order = torch.randperm(32) + 1
    worst, graphs = 0.0, torch._dynamo.utils.counters["stats"]
    for i, length in enumerate(order.tolist()):
        batch = torch.randint(65, (2, length)), torch.randint(65, (2, length))
        for one, run in ((model, model), (twin, fast)):
            one.zero_grad()
            run(*[x.to(next(one.parameters()).device) for x in batch]).backward()
        for own, theirs in zip(twin.parameters(), model.parameters(), strict=True):
            apart = (own.grad.cpu() - theirs.grad).norm() / theirs.grad.norm()
            worst = max(worst, float(apart))
        if i in (0, 1, 2, 31):
            made = dict(kernels.tape_of(0).engine.families.compiled)
            print(f"{i + 1} lengths: {graphs['unique_graphs']} graphs, compiled {made}, gradients "
                  f"at most {worst:.1e} of their norms apart", flush=True)  # fmt: skip


def main() -> None:
    transformers.logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("which", nargs="?", choices=("models", "lengths"), default="models")
    if parser.parse_args().which == "lengths":
        lengths()
        return
    for name, of in MODELS.items():
        torch.manual_seed(0)
        model = of(0.0)
        theirs = losses(model, name, "cpu")
        for compiled in (False, True):
            mine = losses(model, name, "hal", compiled)
            apart = max(abs(a - b) / b for a, b in zip(mine, theirs, strict=True))
            print(f"{name:8} {'compiled' if compiled else 'eager':8} {apart:.1e}", flush=True)
        if name != "ResNet":
            model = of(DROPOUT)
            equal = losses(model, name, "hal") == losses(model, name, "hal", True)
            print(f"{name:8} dropout: {'equal' if equal else 'another one'}", flush=True)
    print(os.environ.get("HAL_DEVICES", ""), "on the host:", bridge.stats()["host"] or "nothing")


if __name__ == "__main__":
    main()
