"""A long training in a process of its own: `python long_run.py STEPS`.

Writes one line of JSON after each of several steps: what the device, the pool, the process and the
interpreter hold.
"""

import gc
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tiny

import stack.framework as ht
from hal.tile.node import Node
from stack.framework import cell, store
from stack.runtime import Array, engine_for

train_gpt = tiny.train_gpt


def counts(step):
    gc.collect()
    engine = engine_for("cpu:0")
    engine.sync()
    objects = gc.get_objects()
    pool, device = engine.pool.stats(), engine.device.stats("")
    return {
        "step": step,
        "resident_nbytes": resident_nbytes(),
        "device_allocations": device.allocations,
        "device_buffers": device.live_buffers,
        "pool_nbytes": pool.allocated_nbytes,
        "pool_peak_nbytes": pool.peak_nbytes,
        "live_set_nbytes": max(plan.live_nbytes for plan in engine.plans()),
        "plans": len(engine.plans()),
        "arrays": sum(isinstance(x, Array) for x in objects) + len(store.arrays),
        "nodes": sum(isinstance(x, Node) for x in objects),
        "pending": len(cell.here.unsettled) + len(store.origins) + len(store.leaves),
        "objects": len(objects),
    }


def resident_nbytes():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def main():
    shown = {int(n) for n in sys.argv[1:]}
    options = {"json": None, "trace": None, "strategy": None, "seed": 1}
    run = train_gpt.Run("cpu:0", 10**6, "float32", (), Path(), "never", 10**9, **options)
    context = train_gpt.MODEL.context
    corpus = train_gpt.load([str(Path(json.__file__).parent)], context)
    with TemporaryDirectory() as folder:
        tokens = train_gpt.shard_of(corpus.train, Path(folder), make=True)
        training = train_gpt.Training(run, train_gpt.Samples(tokens, context, run.seed))
        for step in range(1, max(shown) + 1):
            assert np.isfinite(training.advance())
            if step in shown:
                sys.stdout.write(json.dumps(counts(step)) + "\n")


if __name__ == "__main__":
    ht.set_default_device("cpu:0")
    main()
