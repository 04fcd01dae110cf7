"""What the small examples share: their arguments, lines of progress, an end on one screen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from report import show_error

import hal
import stack.framework as ht

LINES = 10
"""How many lines of progress a run writes."""


class DataError(Exception):
    """The data are not there; says what to do."""


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    device: str
    steps: int
    out: Path
    seed: int


def train(options: Options, step: Callable[[], ht.Tensor]) -> list[float]:
    """Call `step` so many times as `options` ask, and give the losses that it returned."""
    losses: list[float] = []
    every = max(1, options.steps // LINES)
    for n in range(1, options.steps + 1):
        losses.append(step().item())
        if n == 1 or n % every == 0 or n == options.steps:
            print(f"step {n}: loss {losses[-1]:.4f}", flush=True)
    return losses


def save(figure: Figure, options: Options) -> None:
    """Write the picture of a run, and say where."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=120)
    print(f"see {options.out}")


def main(text: str | None, steps: int, run: Callable[[Options], None]) -> None:
    """Run an example as its command line asks, whose `--help` begins with `text` and which takes
    `steps` steps by default; ends the process."""
    parser = argparse.ArgumentParser(description=(text or "").split("\n")[0])
    parser.add_argument(
        "--device", default=ht.default_device(), help="device name; `hal devices` lists them"
    )
    parser.add_argument("--steps", type=int, default=steps, help=f"of training ({steps})")
    picture = Path("runs", Path(sys.argv[0]).stem + ".png")
    parser.add_argument("--out", type=Path, default=picture, metavar="PNG", help=f"({picture})")
    parser.add_argument("--seed", type=int, default=1)
    options = Options(**vars(parser.parse_args()))
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; it takes at least 1")
    try:
        ht.set_default_device(options.device)
        ht.manual_seed(options.seed)
        run(options)
    except (hal.HalError, ht.TensorError, DataError, OSError) as error:
        sys.exit(show_error(error))
    except KeyboardInterrupt:
        sys.exit(130)
