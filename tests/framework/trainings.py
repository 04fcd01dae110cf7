"""Small trainings, alone and in threads at the same time: python -m tests.framework.trainings
[TRIALS] compares their losses on cpu:0, bit for bit."""

import sys
import threading

import numpy as np

import stack.framework as ht
from stack.framework import nn, optim

THREADS = 8
DEADLINE_S = 300.0


def train(seed, steps):
    """Losses of steps that are jitted and not, in training and evaluation, with dropout, views and
    micro-batches."""
    ht.manual_seed(seed)
    width = 8 + seed % 3
    model = nn.Sequential(
        nn.Linear(6, width), nn.GELU(), nn.Dropout(0.2), nn.BatchNorm1d(width), nn.Linear(width, 4)
    )
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = np.random.default_rng(seed)

    def gather(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    def step(x, y):
        optimizer.zero_grad()
        loss = gather(x, y)
        optimizer.step()
        return loss

    captured, micro, ask = ht.jit(step), ht.jit(gather), ht.jit(lambda x: model(x).sum())
    total, losses = ht.zeros(3), []
    for i in range(steps):
        x = rng.normal(size=(4 + i % 2, 6)).astype(np.float32)
        y = rng.integers(0, 4, len(x))
        if i % 3 == 0:
            losses.append(captured(x, y))
        elif i % 3 == 1:
            losses.append(step(ht.tensor(x), ht.tensor(y)))
        else:
            losses += [micro(x, y), micro(x, y)]
            optimizer.step()
            optimizer.zero_grad()
        total[i % 3].add_(losses[-1])
        schedule.step()
        if i % 4 == 3:
            model.eval()
            losses.append(ask(x))
            model.train()
    return [t.numpy().tobytes() for t in [*losses, total, *model.parameters()]]


def at_once(jobs):
    """What each of these functions gives in a thread of its own, all begun at the same moment."""
    start = threading.Barrier(len(jobs))
    found = [None] * len(jobs)

    def run(i):
        start.wait(DEADLINE_S)
        try:
            found[i] = jobs[i]()
        except BaseException as error:  # noqa: BLE001 - told to who waits
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    assert None not in found, "a thread did not end in time"
    return found


def trial(steps, threads=THREADS):
    """Whether each training gives in its thread what it gives alone."""
    together = at_once([lambda i=i: train(i, steps) for i in range(threads)])
    alone = [train(i, steps) for i in range(threads)]
    return [a == b for a, b in zip(together, alone, strict=True)]


if __name__ == "__main__":
    ht.set_default_device("cpu:0")
    sys.setswitchinterval(1e-4)  # threads take turns 50 times as often as they do by default
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        equal = trial(12)
        sys.stdout.write(f"trial {number}: {sum(equal)} of {len(equal)} bit-equal\n")
        sys.stdout.flush()
        if not all(equal):
            sys.exit(1)
