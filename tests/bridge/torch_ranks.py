"""Torch jobs: python -m tests.bridge.torch_ranks FOLDER SIZE:WHAT,WHAT...

For each job as many ranks as its SIZE are forked, none of which has to import torch then. Prints a
line of JSON: what each of them found, in this order.
"""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import stack.bridge.torch

DEADLINE_S = 100.0
WIDTH, HEADS, TOKENS, VOCABULARY, BATCH, STEPS = 32, 4, 12, 24, 8, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        heads = [
            m(y).view(*y.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
            for m in (self.q, self.k, self.v)
        ]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


def batches():
    made = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (BATCH, TOKENS), generator=made) for _ in range(STEPS)]


def train(model, forward=None, share=slice(None)):
    """The mean loss of every step, over all ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for tokens in batches():
        loss = loss_of(model(tokens[share]), tokens[share])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def alone():
    return [float(loss) for loss in train(Model())]


def fsdp(rank, size):
    model, mesh = Model(), init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    each = BATCH // size
    losses = train(model, share=slice(rank * each, (rank + 1) * each))
    for loss in losses:
        dist.all_reduce(loss, dist.ReduceOp.AVG)
    return [float(loss) for loss in losses]


def ddp(rank, size):
    model = nn.parallel.DistributedDataParallel(Model())
    each = BATCH // size
    losses = train(model, share=slice(rank * each, (rank + 1) * each))
    for loss in losses:
        dist.all_reduce(loss, dist.ReduceOp.AVG)
    return [float(loss) for loss in losses]


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


def steps(model, device, share=slice(None)):
    """The losses of some steps on rows of a batch."""
    x, y = torch.linspace(-1, 1, 48).view(8, 6), torch.arange(8) % 3
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[share].to(device)), y[share].to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def device(rank, size):
    """A model on the device "hal", each rank with its rows, in parallel and sharded; and what is
    exchanged there."""
    whole, share = small().to("hal"), slice(rank * 4, rank * 4 + 4)
    parts = small().to("hal")
    fully_shard(parts, mesh=init_device_mesh("hal", (size,)))
    found = {}
    for name, model in (("ddp", nn.parallel.DistributedDataParallel(whole)), ("fsdp", parts)):
        losses = steps(model, "hal", share)
        for loss in losses:
            dist.all_reduce(loss, dist.ReduceOp.AVG)
        found[name] = [loss.item() for loss in losses]
    x = torch.arange(4.0, device="hal").view(2, 2).t() + rank
    every = [torch.empty(2, 2, device="hal") for _ in range(size)]
    dist.all_gather(every, x)
    own = torch.empty(1, 2, device="hal")
    dist.reduce_scatter_single(own, x)
    dist.broadcast(x[1], 1)
    return {**found, "moved": [t.tolist() for t in (*every, own, x)]}


def tensor_parallel(rank, size):
    model, mesh = Model(), init_device_mesh("cpu", (size,))
    columns, rows = ColwiseParallel, RowwiseParallel
    for block in model.blocks:
        plan = {"q": columns(), "k": columns(), "v": columns(), "o": rows()}
        parallelize_module(block, mesh, plan | {"up": columns(), "down": rows()})
    return [float(loss) for loss in train(model)]


class First(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.embed, self.block = model.embed, model.blocks[0]

    def forward(self, tokens):
        return self.block(self.embed(tokens))


class Second(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.block, self.head = model.blocks[1], model.head

    def forward(self, x):
        return self.head(self.block(x))


def pipeline(rank, size):
    part = (First, Second)[rank](Model())
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    optimizer, found = torch.optim.AdamW(part.parameters(), 1e-2), []
    for tokens in batches():
        losses = []
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(torch.stack(losses).detach().mean()) if losses else 0.0)
    return found


def training(rank, size):
    return {f.__name__: f(rank, size) for f in (fsdp, ddp, tensor_parallel, pipeline, device)}


def operations(rank, size):
    """Every operation on backend hal and on gloo: those whose results differ."""
    gloo, mine = dist.new_group(backend="gloo"), dist.group.WORLD
    return [
        f"{name} of {dtype}"
        for name, run in OPERATIONS.items()
        for dtype in (torch.float32, torch.float64, torch.int32, torch.uint8, torch.bfloat16)
        if not _equal(run(rank, size, dtype, mine), run(rank, size, dtype, gloo))
    ]


def _equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _some(rank, dtype, *shape):
    made = torch.Generator().manual_seed(rank)
    return torch.randint(0, 5, shape, generator=made).to(dtype)


def _all_reduce(op):
    def run(rank, size, dtype, group):
        x = _some(rank, dtype, 3, 5)
        dist.all_reduce(x, op, group)
        return [x]

    return run


def _all_reduce_with_gaps(rank, size, dtype, group):
    x = _some(rank, dtype, 3, 5).t()
    dist.all_reduce(x, group=group)
    return [x]


def _reduce(rank, size, dtype, group):
    x = _some(rank, dtype, 7)
    dist.reduce(x, 1, group=group)
    return [x] if rank == 1 else []


def _broadcast(rank, size, dtype, group):
    x = _some(rank, dtype, 6)
    dist.broadcast(x, 1, group)
    return [x]


def _all_gather(rank, size, dtype, group):
    out = [torch.empty(2, 3, dtype=dtype) for _ in range(size)]
    dist.all_gather(out, _some(rank, dtype, 2, 3), group)
    return out


def _all_gather_several(rank, size, dtype, group):
    out = [[torch.empty(n, dtype=dtype) for n in (2, 3)] for _ in range(size)]
    dist.all_gather_coalesced(out, [_some(rank, dtype, n) for n in (2, 3)], group)
    return [x for parts in out for x in parts]


def _all_gather_into(rank, size, dtype, group):
    out = torch.empty(2 * size, 3, dtype=dtype)
    dist.all_gather_single(out, _some(rank, dtype, 2, 3), group)
    return [out]


def _gather(rank, size, dtype, group):
    out = [torch.empty(4, dtype=dtype) for _ in range(size)] if rank == 0 else None
    dist.gather(_some(rank, dtype, 4), out, 0, group)
    return out or []


def _scatter(rank, size, dtype, group):
    out = torch.empty(4, dtype=dtype)
    given = [_some(10 + r, dtype, 4) for r in range(size)] if rank == 1 else None
    dist.scatter(out, given, 1, group)
    return [out]


def _reduce_scatter(rank, size, dtype, group):
    out = torch.empty(2, 3, dtype=dtype)
    dist.reduce_scatter_single(out, _some(rank, dtype, 2 * size, 3), group=group)
    return [out]


def _reduce_scatter_list(rank, size, dtype, group):
    out = torch.empty(3, dtype=dtype)
    parts = [_some(rank + 5 * r, dtype, 3) for r in range(size)]
    dist.reduce_scatter(out, parts, group=group)
    return [out]


def _all_to_all(rank, size, dtype, group):
    out = torch.empty(2 * size, 3, dtype=dtype)
    dist.all_to_all_single(out, _some(rank, dtype, 2 * size, 3), group=group)
    return [out]


def _all_to_all_v(rank, size, dtype, group):
    given = [1 + rank + r for r in range(size)]
    taken = [1 + r + rank for r in range(size)]
    out = torch.empty(sum(taken), 2, dtype=dtype)
    dist.all_to_all_single(out, _some(rank, dtype, sum(given), 2), taken, given, group)
    return [out]


def _tags(rank, size, dtype, group):
    """Received in another order than sent."""
    right, left = (rank + 1) % size, (rank - 1) % size
    given = [_some(rank + 10 * tag, dtype, 4 + tag) for tag in range(3)]
    sent = [dist.isend(x, right, group, tag) for tag, x in enumerate(given)]
    out = [torch.empty(4 + tag, dtype=dtype) for tag in range(3)]
    for tag in (2, 0, 1):
        dist.recv(out[tag], left, group, tag)
    for work in sent:
        work.wait(timedelta(seconds=60))
    return out


def _messages(rank, size, dtype, group):
    right, left = (rank + 1) % size, (rank - 1) % size
    out = torch.empty(5, dtype=dtype)
    mine = _some(rank, dtype, 5)
    begun = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, right, group), dist.P2POp(dist.irecv, out, left, group)]
    )
    for work in begun:
        work.wait(timedelta(seconds=60))
    return [out]


def _bits(op):
    def run(rank, size, dtype, group):
        if dtype.is_floating_point:
            return []
        x = _some(rank, dtype, 3, 5) + 64
        dist.all_reduce(x, op, group)
        return [x]

    return run


def _listed_twice(rank, size, dtype, group):
    x, y = _some(rank, dtype, 4), _some(rank + 7, dtype, 2, 6).t()
    dist.all_reduce_coalesced([x, y, x, y], group=group)
    return [x, y]


def _several(op):
    def run(rank, size, dtype, group):
        x, y = _some(rank, dtype, 4), _some(rank + 7, dtype, 4)
        opts = dist.AllreduceOptions()
        opts.reduceOp = op
        group.allreduce([x, y], opts).wait(timedelta(seconds=60))
        return [x, y]

    return run


def _all_gather_within(rank, size, dtype, group):
    """From memory that others' parts come to."""
    n = 100_000  # too long for a call that copies by itself
    x = _some(rank, dtype, size * n)
    dist.all_gather_single(x, x[n // 2 : n // 2 + n], group)
    return [x]


def _reduce_scatter_within(rank, size, dtype, group):
    n = 100_000
    x = _some(rank, dtype, size * n)
    dist.reduce_scatter_single(x[n // 2 : n // 2 + n], x, group=group)
    return [x[n // 2 : n // 2 + n]]


def _broadcast_several(rank, size, dtype, group):
    x, y = _some(rank, dtype, 4), _some(rank + 7, dtype, 4)
    opts = dist.BroadcastOptions()
    opts.rootRank, opts.rootTensor = 2, 1
    group.broadcast([x, y], opts).wait(timedelta(seconds=60))
    return [x, y]


def _all_gather_lists(rank, size, dtype, group):
    given = [_some(rank, dtype, 2, 3), _some(rank + 7, dtype, 2, 3)]
    out = [[torch.empty(2, 3, dtype=dtype) for _ in range(2 * size)] for _ in given]
    group.allgather(out, given).wait(timedelta(seconds=60))
    return [x for parts in out for x in parts]


def _sparse(rank, size, dtype, group):
    """With indices that others have, that nobody else has, and that come twice."""
    if dtype is torch.bfloat16:
        return []
    places = torch.tensor([[0, rank, 2, 2], [1, 1, 0, 0]])
    x = torch.sparse_coo_tensor(places, _some(rank, dtype, 4, 2), (3, 4, 2))
    empty = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0, dtype=dtype), (5,))
    for tensor in (x, empty):
        dist.all_reduce(tensor, group=group)
    return [x.to_dense(), empty.to_dense()]


def _whoever(rank, size, dtype, group):
    """Rank 1 receives without naming ranks, of which none may send the next one before."""
    got = {}
    if rank != 1:
        dist.send(_some(rank, dtype, 5), 1, group, 3)
    else:
        for _ in range(size - 1):
            out = torch.empty(5, dtype=dtype)
            got[dist.recv(out, None, group, 3)] = out
    dist.barrier(group)
    return [got[source] for source in sorted(got)]


OPERATIONS = {
    "sum": _all_reduce(dist.ReduceOp.SUM),
    "product": _all_reduce(dist.ReduceOp.PRODUCT),
    "min": _all_reduce(dist.ReduceOp.MIN),
    "max": _all_reduce(dist.ReduceOp.MAX),
    "sum of a tensor with gaps": _all_reduce_with_gaps,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather_several,
    "all_gather_single": _all_gather_into,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter_single": _reduce_scatter,
    "reduce_scatter": _reduce_scatter_list,
    "all_to_all_single": _all_to_all,
    "all_to_all_single, unequal": _all_to_all_v,
    "messages": _messages,
    "tags": _tags,
    "and": _bits(dist.ReduceOp.BAND),
    "or": _bits(dist.ReduceOp.BOR),
    "exclusive or": _bits(dist.ReduceOp.BXOR),
    "all_reduce_coalesced of a tensor twice": _listed_twice,
    "sum of several": _several(dist.ReduceOp.SUM),
    "product of several": _several(dist.ReduceOp.PRODUCT),
    "all_gather_single within the output": _all_gather_within,
    "reduce_scatter_single within the input": _reduce_scatter_within,
    "broadcast of several": _broadcast_several,
    "all_gather of several": _all_gather_lists,
    "sparse": _sparse,
    "from whichever rank": _whoever,
}


def trouble(rank, size):
    """What torch's user is told of calls that cannot be."""
    ones = torch.ones(2)
    calls = {
        "bits": lambda: dist.all_reduce(ones, dist.ReduceOp.BOR),
        "factors": lambda: dist.all_reduce(ones, dist._make_nccl_premul_sum(2.0)),
        "types": lambda: dist.all_gather_single(torch.empty(2 * size, dtype=torch.int32), ones),
        "tag": lambda: dist.send(ones, (rank + 1) % size, tag=-3),
        "meta": lambda: dist.broadcast(torch.ones(2, device="meta"), 0),
    }
    told = {
        "futures": futures(rank, size),
        "backward": _backward_alone(rank),
        "twice": _twice(rank, size),
        "late": _late(rank),
    }
    for name, call in calls.items():
        try:
            call()
        except (RuntimeError, ValueError) as error:
            told[name] = f"{type(error).__name__}: {error}"
    differ = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    told["future"] = _said(lambda: _value(differ.get_future()))
    told["differ"] = _said(differ.wait)
    return told


def _backward_alone(rank):
    """What data parallelism says on rank 0 when the other rank calls something else."""
    group = dist.new_group()
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    if rank:
        return _said(lambda: dist.all_reduce(torch.ones(7), group=group))
    return _said(lambda: model(torch.ones(1, 2)).sum().backward())


def _said(call):
    try:
        call()
    except RuntimeError as error:  # of which torch's own errors are
        return str(error)
    return ""


def _value(future):
    for _ in range(6000):
        if future.done():
            break
        time.sleep(0.01)
    return future.value()


def futures(rank, size):
    """Which futures were done while rank 0 was late, and the sums that they give, in any order."""
    begun = [dist.all_reduce(torch.full((4,), float(i)), async_op=True) for i in range(3 * rank)]
    was_done = [work.get_future().done() for work in begun]
    store = dist.distributed_c10d._get_default_store()
    store.set("looked", "yes") if rank else store.get("looked")
    for i in range(3 * (1 - rank)):
        begun.append(dist.all_reduce(torch.full((4,), float(i)), async_op=True))
    sums = [float(_value(work.get_future())[0][0]) for work in reversed(begun)]
    return {"was_done": was_done, "sums": sums, "chained": _chained(), "gaps": _gaps(rank)}


def _twice(rank, size):
    """The sum over a list that names a tensor twice, of which gloo makes something else."""
    x, y = torch.tensor([1.0 + rank]), torch.tensor([10.0])
    dist.group.WORLD.allreduce([x, y, x]).wait(timedelta(seconds=60))
    return [float(x), float(y)]


def _late(rank):
    """A column of a matrix whose sum nobody waits for, after a barrier."""
    x = torch.full((2, 2), float(rank))
    dist.all_reduce(x[:, 1], async_op=True)
    dist.barrier()
    return x.tolist()


def _chained():
    """A sum of sums; what follows the first one waits for the second."""

    def again(first):
        second = dist.all_reduce(first.value()[0], async_op=True)
        return _value(second.get_future())[0]

    first = dist.all_reduce(torch.ones(1), async_op=True)
    return float(_value(first.get_future().then(again)))


def _gaps(rank):
    """A column of a matrix, which alone is received."""
    x = torch.full((2, 2), float(rank))
    dist.broadcast(x[:, 1], 1)
    return x.tolist()


def be_a_rank(rank, size, path, names, tell):
    torch.set_num_threads(1)
    stack.bridge.torch.register()
    store = dist.FileStore(path, size)
    dist.init_process_group(
        "hal", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=DEADLINE_S)
    )
    tell.send([globals()[name](rank, size) for name in names])
    dist.destroy_process_group()


def job(folder, size, names):
    """What every rank found, by name."""
    context, tellers = torch.multiprocessing.get_context("fork"), []
    ranks = []
    for rank in range(size):
        told, tell = context.Pipe(duplex=False)
        given = rank, size, f"{folder}/store-{size}", names, tell
        ranks.append(context.Process(target=be_a_rank, args=given))
        tellers.append(told)
        ranks[-1].start()
        tell.close()  # so that a rank that dies is heard
    try:
        found = [told.recv() for told in tellers if told.poll(DEADLINE_S)]
        for rank in ranks:
            rank.join(DEADLINE_S)
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0] * size
    return dict(zip(names, zip(*found, strict=True), strict=True))


def main(folder, *jobs):
    found = {}
    for told in jobs:
        size, _, names = told.partition(":")
        found |= job(folder, int(size), names.split(","))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
