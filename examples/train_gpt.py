"""Train a small GPT on the bytes of real text, on any device that a plugin offers.

    python examples/train_gpt.py --device cpu:0 --steps 500 --out runs/gpt

The script knows nothing of the device but its name. Without --text it reads the source of the
running interpreter's standard library. DIR gets checkpoints (every --save-every steps in the
background, at the end, and at Ctrl-C; --resume goes on from the newest), the training data as a
shard of tokens, the loss curve and a sample of what the model writes.

    hal run -n 2 --devices cpu:0 --restarts 3 examples/train_gpt.py --steps 500 --out runs/gpt

trains the same model on two ranks: each takes half of every batch, and both write. After a failure
it goes on from the newest whole checkpoint. Any number of ranks goes on from what any has saved.
With --strategy FILE the ranks divide the work as that says: see docs/parallel.md. With --experts N
each block has a mixture of N networks (strategies/expert.txt divides them).

    hal run -n 4 --least 2 --spares 1 --devices cpu:0 examples/train_gpt.py --steps 500

goes on at once when a rank dies, with the step that was under way (`stack.fault`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from corpus import Corpus, CorpusError, load, pairs, shard_of, validation_batches
from gpt import GPT, GPTConfig, decay_groups
from interrupt import interruptible
from report import Curve, Show, announce, show_bytes, show_error, step_progress

import hal
import stack.framework as ht
from stack import fault
from stack.comm.world import World
from stack.framework import nn, optim
from stack.framework.checkpoints import TreeCheckpoints
from stack.launch.progress import kept
from stack.parallel import DataParallel, Mesh, Parallel, Strategy, data_parallel, parallel
from stack.runtime import close_all, engine_for
from stack.storage import NoCheckpoint, Saving
from stack.storage.data import Samples

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
PARTS = 4
"""Of each batch, where ranks may be replaced: so many of them at most share it."""
DTYPES = {"float32": None, "bfloat16": ht.bfloat16}
"""What matrix products are cast to; parameters and the optimizer stay in float32."""
CHECKPOINTS = "checkpoints"
KEPT = 2
"""How many of the newest checkpoints stay."""
RESUME = ALWAYS, AUTO, NEVER = "always", "auto", "never"
INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""

Sharing = DataParallel | Parallel | fault.Training
"""How ranks share the work."""
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
    strategy: Path | None
    seed: int
    experts: int = 0
    memory: int | None = None
    host_memory: int | None = None


def mebibytes(text: str) -> int:
    """The bytes of a number of MiB."""
    try:
        nbytes = int(float(text) * 2**20)
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of MiB above 0, as 512 or 0.7")
    return nbytes


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
    parser.add_argument(
        "--strategy", type=Path, metavar="FILE", help="how the ranks divide the work"
    )
    parser.add_argument(
        "--memory",
        type=mebibytes,
        metavar="MIB",
        help="what a training step may take on a rank; values are computed again to need no more",
    )
    parser.add_argument(
        "--host-memory",
        type=mebibytes,
        metavar="MIB",
        help="with --memory: what may wait in the host's memory, instead of being computed again",
    )
    parser.add_argument("--experts", type=int, default=0, help="networks of each block's mixture")
    parser.add_argument("--seed", type=int, default=1)
    found = parser.parse_args()
    if found.steps < 1:
        parser.error(f"--steps is {found.steps}; it takes at least 1")
    if found.save_every < 1:
        parser.error(f"--save-every is {found.save_every}; it takes at least 1")
    if found.host_memory is not None and found.memory is None:
        parser.error("--host-memory is given without --memory; give that, too")
    if found.experts < 0 or found.experts == 1:
        parser.error(f"--experts is {found.experts}; a mixture takes at least 2, none is 0")
    if found.out.exists() and not found.out.is_dir():
        parser.error(f"--out {found.out} is a file; it takes a folder")
    return Run(**{**vars(found), "text": tuple(found.text)})


class Training:
    """A model with its optimizer and its place in the schedule, on one rank or (`parallel`) on all
    ranks of a job. All ranks read `samples` alike, and each takes its rows."""

    def __init__(self, run: Run, samples: Samples) -> None:
        ht.manual_seed(run.seed)
        self.run, self.samples = run, samples
        self.config = replace(MODEL, experts=run.experts)
        self.model = GPT(self.config)
        self.parallel: Sharing = data_parallel(self.model, Mesh.of(None))
        self.optimizer = optim.AdamW(
            decay_groups(self.model, WEIGHT_DECAY), lr=RATE, betas=(0.9, 0.95)
        )
        self.schedule = optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.step = 0
        self.curve = Curve()
        self._train = ht.jit(self._train_step, memory=run.memory, host_memory=run.host_memory)
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
        if isinstance(self.parallel, Parallel):
            loss = self.parallel.backward(self._part_of_loss, tokens, targets)
        else:
            loss = self._loss(tokens, targets)
            loss.backward()
        self._update()
        return self.parallel.mean(loss)

    def _part_of_loss(self, tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        """The part that a micro-batch of a pipeline has in the mean loss of the batch."""
        assert isinstance(self.parallel, Parallel), "called by its backward"
        return self._loss(tokens, targets) / self.parallel.micro_batches

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()

    def _evaluate_step(self, tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        return self.parallel.mean(self._loss(tokens, targets))

    def survive(self) -> fault.Training:
        """Let ranks of this training be replaced from now on."""
        state = {"optimizer": self.optimizer, "schedule": self.schedule}
        own, random = (self.progress, self.go_to), ht.default_generator()
        parallel = fault.Training(self.model, PARTS, **state, progress=own, random=random)
        self._train = parallel.gradients(self._loss, self._update)
        self._evaluate = parallel.averaged(self._loss)
        self.parallel, parallel.step = parallel, self.step
        return parallel

    def progress(self) -> dict[str, Any]:
        """Where the training is, in plain values."""
        position = self.samples.position.as_json()
        return {"step": self.step, "data": position, "losses": self.curve.as_json()}

    def go_to(self, progress: dict[str, Any]) -> None:
        """Go on where `progress` was taken."""
        self.step, self.curve = progress["step"], Curve.from_json(progress["losses"])
        self.samples.go_to(progress["data"])

    def advance(self) -> float:
        """One step; gives its loss."""
        pair = pairs(self.samples.batch(BATCH))
        loss = self._train(*map(self.parallel.part, pair)).item()
        self.schedule.step()
        self.step += 1
        return float(loss)

    def validate(self, corpus: Corpus) -> float:
        """Mean loss over the validation batches, in nats per byte."""
        batches = validation_batches(corpus.validation, VALIDATION_BATCHES, BATCH, MODEL.context)
        self.model.eval()
        with ht.no_grad():
            losses = [self._evaluate(*map(self.parallel.part, pair)).item() for pair in batches]
        self.model.train()
        return float(np.mean(losses))

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, for any number of ranks."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "step": self.step,
            "random": ht.default_generator().get_state(),
            "data": self.samples.position.as_json(),
            "text": self.samples.folder.name,
            "config": asdict(self.config),
            "losses": self.curve.as_json(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. Raises CheckpointError for that of another model or
        text."""
        if state.get("config") != asdict(self.config):
            raise ht.CheckpointError(
                f"the checkpoint holds another model: {state.get('config')}, not "
                f"{asdict(self.config)}"
            )
        if state.get("text") != self.samples.folder.name:
            raise ht.CheckpointError(
                "the checkpoint is of a training on another text: give that one with --text, or "
                "begin anew in another folder with --out"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]
        ht.default_generator().set_state(*state["random"])
        self.samples.go_to(state["data"])
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


class Saves:
    """The checkpoints of a training, one of which may be written while the next steps go on."""

    def __init__(self, training: Training, checkpoints: TreeCheckpoints) -> None:
        self._training, self._checkpoints = training, checkpoints
        self._last: tuple[int, Saving] | None = None

    def begin(self) -> None:
        """Begin to write one; returns when the state is copied. Raises what went wrong before.
        Where ranks may be replaced all hold the same, and rank 0 writes."""
        step, parallel = self._training.step, self._training.parallel
        if isinstance(parallel, fault.Training) and parallel.rank:
            return
        if self._last is None or self._last[0] != step:
            # Later steps in DIR are of a run that this one replaces.
            options = {"background": True, "later": "remove"}
            with self._training.parallel.gathered():
                state = self._training.state()
                self._last = step, self._checkpoints.save(step, state, **options)

    def note(self) -> None:
        """Tell the launcher, if one was committed. Raises what went wrong."""
        if self._last is not None and self._last[1].done.done():
            self._last[1].wait_committed()
            if self._training.parallel.rank == 0:
                kept(self._last[0])

    def finish(self) -> None:
        """Write the last one, if there was a step, and wait for it. Raises what went wrong."""
        if self._training.step:
            self.begin()
        self._checkpoints.wait_idle()
        self.note()

    def resume(self) -> None:
        """Go on from the newest whole one as the command line asks. Raises NoCheckpoint where there
        has to be one and is none, CheckpointError for one of another training."""
        if self._training.run.resume == NEVER:
            return
        try:
            step, state = self._checkpoints.load()
        except NoCheckpoint:
            if self._training.run.resume == ALWAYS:
                raise
            return
        try:
            self._training.restore(state)
        except ht.CheckpointError as error:
            where = self._training.run.out / CHECKPOINTS
            raise ht.CheckpointError(f"step {step} of {where}: {error}") from error


def train(
    training: Training, saves: Saves, corpus: Corpus, log: Log, stop: Callable[[], bool]
) -> bool:
    """Steps to the end of the run or until `stop()` on a rank, with validations and checkpoints in
    between. Gives whether it was stopped, equally on all ranks."""
    tokens, parallel = BATCH * MODEL.context, training.parallel
    with _progress(training) as show:

        def step() -> bool:
            began = time.perf_counter()
            loss = training.advance()
            rate = tokens / (time.perf_counter() - began)
            training.curve.train.append((training.step, loss))
            log(step=training.step, loss=loss, tokens_per_s=round(rate, 1))
            if training.step % VALIDATE_EVERY == 0:
                training.curve.validation.append((training.step, training.validate(corpus)))
            saves.note()
            if training.step % training.run.save_every == 0:
                saves.begin()
            show(training.curve, rate)
            return parallel.any(stop())

        if isinstance(parallel, fault.Training):
            return parallel.each(step, training.run.steps)
        stopped = parallel.any(stop())
        while not stopped and training.step < training.run.steps:
            stopped = step()
    return stopped


def _progress(training: Training) -> AbstractContextManager[Show]:
    """The progress bar, on rank 0; none where that may be another process soon."""
    if training.parallel.rank or isinstance(training.parallel, fault.Training):
        return nullcontext(lambda curve, rate: None)
    return step_progress(training.run.steps, training.step)


def finish(training: Training, corpus: Corpus, log: Log) -> None:
    """Validate, draw the loss curve, and let the model write."""
    val_loss = training.validate(corpus)
    with training.parallel.gathered():
        if training.parallel.rank == 0:
            show_end(training, val_loss, log)


def show_end(training: Training, val_loss: float, log: Log) -> None:
    """What rank 0 shows and writes."""
    out = training.run.out
    training.curve.validation.append((training.step, val_loss))
    training.curve.plot(out / "loss.png")
    log(step=training.step, val_loss=val_loss)
    if isinstance(training.parallel, Parallel):
        print(*training.parallel.explained, sep="\n")
    print(f"validation loss {val_loss:.4f} nats/byte after {training.step} steps; see {out}")
    sample = bytearray()
    for byte in training.sample(b"def ", SAMPLE_BYTES):
        sample += byte
        show_bytes(byte)
    print()
    (out / "sample.txt").write_bytes(sample)


@contextmanager
def json_lines(training: Training) -> Iterator[Log]:
    """Gives what writes a line to the file of --json at once, on whoever is rank 0 then, behind
    those that are there but for those of a run's first step; it does nothing without --json."""
    with ExitStack() as stack:
        streams: list[TextIO] = []

        def log(**values: Any) -> None:
            file = training.run.json
            if file is None or training.parallel.rank:
                return
            if not streams:
                mode = "w" if training.step <= 1 else "a"
                streams.append(stack.enter_context(file.open(mode, buffering=1)))
            print(json.dumps(values), file=streams[0])

        yield log


def run_training(run: Run) -> int:
    """Train as the command line asks; gives the exit code."""
    corpus, mesh = load(run.text, MODEL.context), Mesh.present()
    may_change = mesh.world is not None and mesh.world.member != ""
    traced = run.trace is not None and mesh.rank == 0
    engine_for(run.device, [f"trace:{run.trace}"] if traced else None)
    ht.set_default_device(run.device)
    with ExitStack() as stack:
        # Saves go on beside the steps, so they have a group of ranks of their own.
        alone = mesh.size("data") == 1 or may_change
        group = None if alone else stack.enter_context(mesh.join("data"))
        tokens = shard_of(corpus.train, run.out / "data", make=mesh.rank == 0 or may_change)
        if group is not None:
            group.barrier()  # the shard is there
        training = Training(run, Samples(tokens, MODEL.context, run.seed))
        checkpoints = TreeCheckpoints(run.out / CHECKPOINTS, group, keep=KEPT)
        saves = Saves(training, stack.enter_context(checkpoints))
        saves.resume()
        with spread(training, mesh, may_change) as training.parallel:
            stopped = run_steps(training, saves, corpus)
    close_all()  # here, so that a trace that cannot be written is an error of the run
    return INTERRUPTED if stopped else 0


def spread(training: Training, mesh: Mesh, may_change: bool) -> Sharing:
    """The model on all ranks, as the command line asks. Raises HalError for a strategy where
    ranks may be replaced: all of them must hold the same then."""
    if may_change and training.run.strategy is not None:
        raise hal.HalError("ranks that may be replaced hold the whole model: no --strategy")
    if may_change:
        return training.survive()
    if training.run.strategy is None:
        return data_parallel(training.model, mesh)
    try:
        strategy = Strategy.parse(training.run.strategy.read_text())
    except hal.HalError as error:
        raise type(error)(f"{training.run.strategy}: {error}") from error
    return parallel(training.model, Mesh.present(**strategy.sizes), strategy, training.optimizer)


def run_steps(training: Training, saves: Saves, corpus: Corpus) -> bool:
    """Train, save and finish; gives whether the run was interrupted."""
    run, parallel = training.run, training.parallel
    with json_lines(training) as log:
        with interruptible() as stop:
            if parallel.rank == 0 and not isinstance(parallel, fault.Training):
                parameters = sum(p.numel() for p in training.model.parameters())
                announce(run.device, corpus, parameters, training.parallel.size)
                if training.step:
                    print(f"goes on after step {training.step}", flush=True)
            stopped = train(training, saves, corpus, log, stop)
            saves.finish()
        if stopped:
            say_interrupted(training)
        else:
            finish(training, corpus, log)
    return stopped


def say_interrupted(training: Training) -> None:
    """What the run leaves, on rank 0."""
    if training.parallel.rank:
        return
    if not training.step:
        print("interrupted before the first step; there is nothing to save")
    else:
        where = training.run.out / CHECKPOINTS
        print(f"interrupted at step {training.step}; saved {where}; go on with --resume")


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
