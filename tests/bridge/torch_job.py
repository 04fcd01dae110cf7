"""A rank of `hal run` that tells torch nothing of where the others are; prints what it found."""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def met(backend):
    """Sums over all ranks and over a group; what the store has, and says of what it lacks."""
    dist.init_process_group(backend)
    rank, everyone = dist.get_rank(), torch.ones(1)
    dist.all_reduce(everyone)
    few = torch.full((1,), float(rank))
    dist.all_reduce(few, group=dist.new_group([0, 1]))
    store, said = dist.distributed_c10d._get_default_store(), ""
    store.add("count", 1)
    try:
        store.wait(["never"], timedelta(milliseconds=1))
    except dist.DistStoreError as error:
        said = str(error)
    dist.barrier()
    found = [everyone.item(), few.item(), int(store.get("count")), store.check(["never"]), said]
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    found = [place, *map(met, ("hal", "gloo", "hal"))]
    print(json.dumps(found), flush=True)  # noqa: T201
