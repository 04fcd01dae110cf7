"""What a training run shows: a progress bar, a loss curve, an error on one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from corpus import Corpus
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Losses = list[tuple[int, float]]


@dataclass
class Curve:
    """(step, loss in nats per byte) pairs of training and of validation."""

    train: Losses = field(default_factory=list)
    validation: Losses = field(default_factory=list)

    def as_json(self) -> dict[str, list[list[float]]]:
        return {
            "train": [list(p) for p in self.train],
            "validation": [list(p) for p in self.validation],
        }

    @staticmethod
    def from_json(value: dict[str, list[list[float]]]) -> Curve:
        def pairs(name: str) -> Losses:
            return [(int(step), loss) for step, loss in value[name]]

        return Curve(pairs("train"), pairs("validation"))

    def plot(self, path: Path) -> None:
        """Write both curves as a PNG."""
        from matplotlib.figure import Figure  # noqa: PLC0415  loading it takes as long as all else

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*self.train, strict=True), linewidth=0.8, label="training")
        axes.plot(*zip(*self.validation, strict=True), "o-", label="validation")
        axes.set(xlabel="step", ylabel="loss (nats per byte)")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(path, dpi=120)


Show = Callable[[Curve, float], None]
"""Shows a step's curve and tokens per second."""


@contextmanager
def step_progress(steps: int, done: int) -> Iterator[Show]:
    """A progress bar; call what it gives after each step with the curve and tokens per second."""
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn(
            "loss {task.fields[loss]}  val {task.fields[val]}  {task.fields[rate]} tokens/s  ETA"
        ),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("train", total=steps, completed=done, loss="-", val="-", rate="-")

        def show(curve: Curve, rate: float) -> None:
            val = f"{curve.validation[-1][1]:.3f}" if curve.validation else "-"
            loss = f"{curve.train[-1][1]:.3f}"
            progress.update(
                task, completed=curve.train[-1][0], loss=loss, val=val, rate=f"{rate:,.0f}"
            )

        yield show


def announce(device: str, corpus: Corpus, parameters: int, ranks: int) -> None:
    """Say what is about to be trained on what."""
    where = device if ranks == 1 else f"{ranks} ranks, this one on {device}"
    print(
        f"{parameters:,} parameters on {where}; {len(corpus.train):,} bytes of {corpus.files} "
        f"files to train on, {len(corpus.validation):,} to validate on",
        flush=True,
    )


def show_bytes(text: bytes) -> None:
    """Write bytes of a model to the terminal at once; what is not printable ASCII becomes "?"."""
    shown = [chr(b) if 32 <= b < 127 or chr(b) in "\n\t" else "?" for b in text]
    print("".join(shown), end="", flush=True)


def show_error(error: Exception) -> int:
    """One screen on what went wrong and what to do; gives the exit code."""
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
    console.print(_said(error), markup=False, highlight=False)
    next_step = getattr(error, "next_step", None)
    if next_step:
        console.print(f"What to do: {next_step}", markup=False, highlight=False)
    return 1


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
