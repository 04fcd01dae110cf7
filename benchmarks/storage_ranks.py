"""Two ranks on one host that save and load the same state by our storage, by PyTorch's DCP and by
plain direct I/O: `python -m benchmarks.storage_ranks STORE GLOO RANK FOLDER NBYTES` reads a line
with the name of a way for each measurement; every rank answers with its figure."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as Rows

import stack.framework as ht
from stack.comm.group import Group
from stack.comm.store import Store
from stack.framework.checkpoints import TreeCheckpoints
from stack.runtime.opening import close_all, engine_for
from stack.storage import Checkpoints, TensorShard
from stack.storage.memory import Scratch, aligned

TOKEN = "of-a-benchmark"
SIZE = 2
DEADLINE_S = 300.0
TENSORS, WIDTH = 16, 1024
BLOCK = 8 << 20
STEPS = 200


class Rank:
    """A rank's process: its part of the state, and where each way keeps it."""

    def __init__(self, store: str, gloo: str, rank: int, folder: Path, nbytes: int) -> None:
        self.rank, self.folder = rank, folder
        self.group = Group.join(Store(store, TOKEN, 30.0), store, "bench", rank, SIZE, DEADLINE_S)
        own = Group.join(Store(store, TOKEN, 30.0), store, "saves", rank, SIZE, DEADLINE_S)
        dist.init_process_group("gloo", init_method=f"tcp://{gloo}", rank=rank, world_size=SIZE)
        rows = nbytes // TENSORS // SIZE // WIDTH // 4
        rng = np.random.default_rng(rank)
        self.arrays = {f"w{i}": rng.random((rows, WIDTH), np.float32) for i in range(TENSORS)}
        shape = (rows * SIZE, WIDTH)
        self.parts = {
            "model": {
                n: TensorShard.box(a, shape, (rank * rows, 0)) for n, a in self.arrays.items()
            }
        }
        mesh = init_device_mesh("cpu", (SIZE,))
        self.tensors = {
            n: DTensor.from_local(torch.from_numpy(a), mesh, [Rows(0)])
            for n, a in self.arrays.items()
        }
        self.ours = Checkpoints(folder / "ours", own, keep=1, deadline_s=DEADLINE_S)
        trees = Group.join(Store(store, TOKEN, 30.0), store, "trees", rank, SIZE, DEADLINE_S)
        self.trees = TreeCheckpoints(folder / "trees", trees, keep=1, deadline_s=DEADLINE_S)
        self.state: dict[str, ht.Tensor] = {}
        self.square = torch.ones(512, 512)
        self.nbytes = rows * WIDTH * 4 * TENSORS

    def timed(self, call: Callable[[], object]) -> float:
        """The seconds until all ranks have done it."""
        self.group.barrier()
        start = time.perf_counter()
        call()
        self.group.barrier()
        return time.perf_counter() - start

    def save_ours(self) -> float:
        return self.timed(lambda: self.ours.save(1, self.parts))

    def save_dcp(self) -> float:
        writer = dcp.FileSystemWriter(str(self.folder / "dcp"), sync_files=True)
        return self.timed(lambda: dcp.save({"model": self.tensors}, storage_writer=writer))

    def save_hf(self) -> float:
        index = dict.fromkeys(self.tensors, 1)
        writer = dcp.HuggingFaceStorageWriter(
            str(self.folder / "hf"), index, save_distributed=True, enable_consolidation=True
        )
        return self.timed(lambda: dcp.save(dict(self.tensors), storage_writer=writer))

    def direct(self, read: bool) -> float:
        """This rank's bytes at once, from and to aligned memory, as fast as the disk takes them."""
        path = self.folder / f"direct-{self.rank}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        memory = aligned(self.nbytes)
        memory[:] = 1
        os.posix_fallocate(handle, 0, self.nbytes)

        def one(at: int) -> None:
            part = memory[at : min(at + BLOCK, self.nbytes)].data
            if read:
                os.preadv(handle, [part], at)
            else:
                os.pwrite(handle, part, at)

        def whole() -> None:
            list(pool.map(one, range(0, self.nbytes, BLOCK), timeout=DEADLINE_S))
            if not read:
                os.fsync(handle)

        with ThreadPoolExecutor(6) as pool:
            seconds = self.timed(whole)
        os.close(handle)
        return seconds

    def save_direct(self) -> float:
        return self.direct(read=False)

    def load_direct(self) -> float:
        self._forget()
        return self.direct(read=True)

    def load_ours(self) -> float:
        self._forget()
        return self.timed(lambda: self.ours.load(self.parts))

    def load_dcp(self) -> float:
        self._forget()
        state = {"model": self.tensors}
        return self.timed(lambda: dcp.load(state, checkpoint_id=str(self.folder / "dcp")))

    def _forget(self) -> None:
        """Drop the page cache."""
        if self.rank == 0:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("1")

    def stall_ours(self) -> float:
        self.group.barrier()
        start = time.perf_counter()
        saving = self.ours.save(1, self.parts, background=True)
        seconds = time.perf_counter() - start
        saving.wait_committed()
        return seconds

    def stall_tensors(self) -> float:
        """Of as many bytes a rank, of tensors on a device that all ranks hold: until the call
        returns, and what the update behind forward and backward takes longer than alone."""
        if not self.state:
            for i, array in enumerate(self.arrays.values()):
                self.state[f"v{i}"], self.state[f"w{i}"] = ht.tensor(array), ht.tensor(array)
            self._update()
        self.group.barrier()
        alone = self._update()
        self.group.barrier()
        start = time.perf_counter()
        saving = self.trees.save(1, {"model": self.state}, background=True)
        seconds = time.perf_counter() - start
        self._step(lambda steps: steps >= STEPS)
        seconds += max(0.0, self._update() - alone)
        saving.wait_committed()
        return seconds

    def _update(self) -> float:
        """The seconds of an update in place of all tensors."""
        start = time.perf_counter()
        self._add()
        engine_for("cpu:0").sync(DEADLINE_S)
        return time.perf_counter() - start

    @cached_property
    def _add(self) -> Callable[[], None]:
        def add() -> None:
            for t in self.state.values():
                t.add_(1.0)

        return ht.jit(add)

    def stall_dcp(self) -> float:
        self.group.barrier()
        start = time.perf_counter()
        future = dcp.async_save({"model": self.tensors}, checkpoint_id=str(self.folder / "async"))
        seconds = time.perf_counter() - start
        future.result(DEADLINE_S)
        return seconds

    def step_alone(self) -> float:
        return self._step(lambda steps: steps >= STEPS)

    def step_beside(self) -> float:
        """A step's mean time while a save is written."""
        saving = self.ours.save(1, self.parts, background=True)
        seconds = self._step(lambda steps: steps and saving.done.done())
        saving.wait_committed()
        return seconds

    def held_ours(self) -> float:
        def save() -> Future[Any]:
            saving = self.ours.save(1, self.parts, background=True, staged=False)
            self._product()  # reads the state, as forward and backward do
            saving.wait_staged()
            return saving.done

        return self._held(save, 1)

    def held_dcp(self) -> float:
        folder = str(self.folder / "async")
        return self._held(lambda: dcp.async_save({"model": self.tensors}, checkpoint_id=folder), 0)

    def _held(self, save: Callable[[], Future[Any]], steps: int) -> float:
        """The seconds that training loses by a save, in which it made so many steps: until the
        arrays may change, and in the steps until its end, which take longer than alone. At least a
        hundredth of the time of a save: steps alone do not repeat better."""
        alone = self.step_alone()
        self.group.barrier()
        start = time.perf_counter()
        future = save()
        while not future.done():
            self._product()
            steps += 1
        seconds = time.perf_counter() - start
        future.result(DEADLINE_S)
        return max(seconds - steps * alone, seconds / 100)

    def _step(self, ended: Callable[[int], object]) -> float:
        """The mean time of products on one thread: each rank has a processor of its own."""
        steps, start = 0, time.perf_counter()
        while not ended(steps):
            self._product()
            steps += 1
        return (time.perf_counter() - start) / steps

    def _product(self) -> None:
        self.square @ self.square

    def memory_save(self) -> float:
        return self._peak(lambda: self.ours.save(1, self.parts))

    def memory_load(self) -> float:
        return self._peak(lambda: self.ours.load(self.parts))

    def _peak(self, call: Callable[[], object]) -> float:
        """MiB of resident memory that it takes beyond what is there before."""
        self.ours._scratch = Scratch()  # without what saves before keep for the next one
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """A figure of this process in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store, gloo, rank, folder, nbytes = sys.argv[1:]
    member = Rank(store, gloo, int(rank), Path(folder), int(nbytes))
    sys.stdout.write("null\n")
    sys.stdout.flush()
    for line in sys.stdin:
        seconds = getattr(member, line.strip())()
        sys.stdout.write(json.dumps(seconds) + "\n")
        sys.stdout.flush()
    member.ours.close()
    member.trees.close()
    close_all()
    member.group.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
