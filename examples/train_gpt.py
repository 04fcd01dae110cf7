"""Train a small GPT on the bytes of real text, on any device that a plugin offers.

    python examples/train_gpt.py --device cpu:0 --steps 500 --out runs/gpt

The script knows nothing of the device but its name. Without --text it reads the source of the
running interpreter's standard library. DIR gets a checkpoint (every --save-every steps, at the end,
and at Ctrl-C; --resume goes on from it), the loss curve and a sample of what the model writes.

    hal run -n 2 --devices cpu:0 --restarts 3 examples/train_gpt.py --steps 500 --out runs/gpt

trains the same model on two ranks: each takes half of every batch, and rank 0 writes. After a
failure it goes on from the newest whole checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Corpus, CorpusError, batch, load, validation_batches
from gpt import GPT, GPTConfig, decay_groups
from interrupt import interruptible
from report import Curve, Show, announce, show_bytes, show_error, step_progress

import hal
import stack.framework as ht
from stack.comm.world import World
from stack.framework import nn, optim
from stack.launch.progress import kept
from stack.parallel import Mesh, data_parallel
from stack.runtime import close_all, engine_for

MODEL = GPTConfig(layers=4, width=192, heads=6, context=128)
BATCH = 16
RATE = 2e-3
WARMUP = 40
WEIGHT_DECAY = 0.1
CLIP = 1.0
VALIDATE_EVERY = 200
SAVE_EVERY = 200
VALIDATION_BATCHES = 20
SAMPLE_BYTES = 400
TEMPERATURE = 0.7
DTYPES = {"float32": None, "bfloat16": ht.bfloat16}
"""What matrix products are cast to; parameters and the optimizer stay in float32."""
CHECKPOINT = "checkpoint.safetensors"
RESUME = ALWAYS, AUTO, NEVER = "always", "auto", "never"
INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""

Log = Callable[..., None]
"""Takes the values of one line as keywords."""


@dataclass(frozen=True)
class Run:
    """What the command line asks for."""

    device: str
    steps: int
    dtype: str
    text: tuple[str, ...]
    out: Path
    resume: str
    save_every: int
    json: Path | None
    trace: Path | None
    seed: int


def arguments() -> Run:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--device", default=ht.default_device(), help="device name; `hal devices` lists them"
    )
    parser.add_argument("--steps", type=int, default=500, help="training steps in all")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="type of matrix products"
    )
    parser.add_argument("--text", nargs="+", default=(), metavar="PATH", help="files or folders")
    parser.add_argument("--out", type=Path, default=Path("runs/gpt"), metavar="DIR")
    parser.add_argument(
        "--resume",
        nargs="?",
        choices=RESUME,
        const=ALWAYS,
        default=AUTO if World.present() else NEVER,
        help="go on from the newest whole checkpoint in DIR: always (--resume alone), never, or "
        "auto, where there is one; under `hal run` it is auto, else never",
    )
    parser.add_argument(
        "--save-every",
        type=int,
        default=SAVE_EVERY,
        metavar="STEPS",
        help="steps between checkpoints",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON line a step")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto")
    parser.add_argument("--seed", type=int, default=1)
    found = parser.parse_args()
    if found.steps < 1:
        parser.error(f"--steps is {found.steps}; it takes at least 1")
    if found.save_every < 1:
        parser.error(f"--save-every is {found.save_every}; it takes at least 1")
    if found.out.exists() and not found.out.is_dir():
        parser.error(f"--out {found.out} is a file; it takes a folder")
    return Run(**{**vars(found), "text": tuple(found.text)})


class Training:
    """A model with its optimizer and its place in the schedule, on one rank or (`parallel`) on all
    ranks of a job."""

    def __init__(self, run: Run) -> None:
        ht.manual_seed(run.seed)
        self.run = run
        self.model = GPT(MODEL)
        self.parallel = data_parallel(self.model, Mesh.of(None))
        self.optimizer = optim.AdamW(
            decay_groups(self.model, WEIGHT_DECAY), lr=RATE, betas=(0.9, 0.95)
        )
        self.schedule = optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.step = 0
        self.curve = Curve()
        self._train = ht.jit(self._train_step)
        self._evaluate = ht.jit(self._evaluate_step)

    def _rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        if step < WARMUP:
            return (step + 1) / WARMUP
        done = min(1.0, (step - WARMUP) / max(1, self.run.steps - WARMUP))
        return float(0.1 + 0.45 * (1 + np.cos(np.pi * done)))

    def _loss(self, tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        with ht.autocast(DTYPES[self.run.dtype]):
            return self.model.loss(tokens, targets)

    def _train_step(self, tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        self.optimizer.zero_grad()
        loss = self._loss(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return self.parallel.mean(loss)

    def _evaluate_step(self, tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        return self.parallel.mean(self._loss(tokens, targets))

    def advance(self, corpus: Corpus) -> float:
        """One step; gives its loss."""
        pair = batch(corpus.train, self.run.seed, self.step, BATCH, MODEL.context)
        loss = self._train(*map(self.parallel.part, pair)).item()
        self.schedule.step()
        self.step += 1
        return float(loss)

    def validate(self, corpus: Corpus) -> float:
        """Mean loss over the validation batches, in nats per byte."""
        batches = validation_batches(corpus.validation, VALIDATION_BATCHES, BATCH, MODEL.context)
        with ht.no_grad():
            losses = [self._evaluate(*map(self.parallel.part, pair)).item() for pair in batches]
        return float(np.mean(losses))

    def save(self, path: Path) -> None:
        """Write all that `restore` needs, for any number of ranks; an older checkpoint stays until
        the new one is whole."""
        if self.parallel.rank:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "step": self.step,
            "random": ht.default_generator().get_state(),
            "config": asdict(MODEL),
            "losses": self.curve.as_json(),
        }
        ht.save(path, state)
        kept(self.step)

    def resume(self) -> None:
        """Go on from the newest whole checkpoint as the command line asks. Raises CheckpointError
        where there has to be one and is none."""
        out = self.run.out
        if self.run.resume == ALWAYS:
            self.restore(out / CHECKPOINT, ht.load(out / CHECKPOINT))
        elif self.run.resume == AUTO and (found := ht.load_newest(out)):
            self.restore(*found)

    def restore(self, path: Path, state: dict[str, Any]) -> None:
        """Go on where `save` was called. Raises CheckpointError for another model's checkpoint."""
        if state.get("config") != asdict(MODEL):
            raise ht.CheckpointError(
                f"{path} holds another model: {state.get('config')}, not {asdict(MODEL)}"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]
        ht.default_generator().set_state(*state["random"])
        self.curve = Curve.from_json(state["losses"])

    def sample(self, prompt: bytes, count: int) -> Iterator[bytes]:
        """Bytes that the model writes after a prompt, one after the other."""
        logits_of = ht.jit(lambda tokens: self.model(tokens))
        rng = np.random.default_rng(self.run.seed)
        text = bytearray(prompt)
        for _ in range(count):
            recent = text[-MODEL.context :]
            window = np.zeros((1, MODEL.context), np.int64)
            window[0, : len(recent)] = list(recent)
            with ht.no_grad():
                logits = logits_of(window).numpy()[0, len(recent) - 1].astype(np.float64)
            weights = np.exp((logits - logits.max()) / TEMPERATURE)
            text.append(int(rng.choice(len(weights), p=weights / weights.sum())))
            yield bytes(text[-1:])


def train(training: Training, corpus: Corpus, log: Log, stop: Callable[[], bool]) -> bool:
    """Steps to the end of the run or until `stop()` on a rank, with validations and checkpoints in
    between. Gives whether it was stopped, equally on all ranks."""
    tokens = BATCH * MODEL.context
    with _progress(training) as show:
        while not (stopped := training.parallel.any(stop())):
            if training.step >= training.run.steps:
                break
            began = time.perf_counter()
            loss = training.advance(corpus)
            rate = tokens / (time.perf_counter() - began)
            training.curve.train.append((training.step, loss))
            log(step=training.step, loss=loss, tokens_per_s=round(rate, 1))
            if training.step % VALIDATE_EVERY == 0:
                training.curve.validation.append((training.step, training.validate(corpus)))
            if training.step % training.run.save_every == 0:
                training.save(training.run.out / CHECKPOINT)
            show(training.curve, rate)
    return stopped


def _progress(training: Training) -> AbstractContextManager[Show]:
    """The progress bar, on rank 0."""
    if training.parallel.rank:
        return nullcontext(lambda curve, rate: None)
    return step_progress(training.run.steps, training.step)


def finish(training: Training, corpus: Corpus, log: Log) -> None:
    """Validate, draw the loss curve, and let the model write."""
    out, val_loss = training.run.out, training.validate(corpus)
    if training.parallel.rank:
        return
    training.curve.validation.append((training.step, val_loss))
    training.curve.plot(out / "loss.png")
    log(step=training.step, val_loss=val_loss)
    print(f"validation loss {val_loss:.4f} nats/byte after {training.step} steps; see {out}")
    sample = bytearray()
    for byte in training.sample(b"def ", SAMPLE_BYTES):
        sample += byte
        show_bytes(byte)
    print()
    (out / "sample.txt").write_bytes(sample)


@contextmanager
def json_lines(run: Run, rank: int, more: bool) -> Iterator[Log]:
    """Gives what writes a line to the file of --json at once, on rank 0, behind those that are
    there if there is `more` of a run; it does nothing without --json."""
    if run.json is None or rank:
        yield lambda **values: None
        return
    with run.json.open("a" if more else "w", buffering=1) as stream:
        yield lambda **values: print(json.dumps(values), file=stream)


def run_training(run: Run) -> int:
    """Train as the command line asks; gives the exit code."""
    corpus, mesh = load(run.text, MODEL.context), Mesh.present()
    traced = run.trace is not None and mesh.rank == 0
    engine_for(run.device, [f"trace:{run.trace}"] if traced else None)
    ht.set_default_device(run.device)
    training = Training(run)
    training.resume()
    with data_parallel(training.model, mesh) as training.parallel:
        stopped = run_steps(training, corpus)
    close_all()  # here, so that a trace that cannot be written is an error of the run
    return INTERRUPTED if stopped else 0


def run_steps(training: Training, corpus: Corpus) -> bool:
    """Train, save and finish; gives whether the run was interrupted."""
    run, rank = training.run, training.parallel.rank
    checkpoint = run.out / CHECKPOINT
    if rank == 0:
        run.out.mkdir(parents=True, exist_ok=True)
    with json_lines(run, rank, training.step > 0) as log:
        with interruptible() as stop:
            if rank == 0:
                parameters = sum(p.numel() for p in training.model.parameters())
                announce(run.device, corpus, parameters, training.parallel.size)
                if training.step:
                    print(f"goes on after step {training.step}", flush=True)
            stopped = train(training, corpus, log, stop)
            if training.step:
                training.save(checkpoint)
            training.parallel.any(stopped)  # nobody ends before the checkpoint is whole
        if stopped:
            say_interrupted(training, checkpoint)
        else:
            finish(training, corpus, log)
    return stopped


def say_interrupted(training: Training, checkpoint: Path) -> None:
    """What the run leaves, on rank 0."""
    if training.parallel.rank:
        return
    if not training.step:
        print("interrupted before the first step; there is nothing to save")
    else:
        print(f"interrupted at step {training.step}; saved {checkpoint}; go on with --resume")


def main() -> int:
    """Run the script; gives the exit code. What a person can put right ends in one screen."""
    try:
        return run_training(arguments())
    except KeyboardInterrupt:
        print("\ninterrupted; checkpoints written before are whole", file=sys.stderr)
        return INTERRUPTED
    except (hal.HalError, ht.CheckpointError, ht.TensorError, CorpusError, OSError) as error:
        return show_error(error)


if __name__ == "__main__":
    sys.exit(main())
