"""Every rank adds its own numbers to those of the others: hal run -n 4 examples/all_reduce.py"""

from __future__ import annotations

import numpy as np

from stack.comm.group import Group
from stack.comm.world import World


def main() -> None:
    world = World.from_environment()
    with Group.of(world) as group:
        total = group.all_reduce(np.full(4, world.rank, np.float32))
    print(f"the sum over {world.size} ranks is {total.tolist()}")


if __name__ == "__main__":
    main()
