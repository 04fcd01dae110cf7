"""Proves the programs of every generator for every number of ranks:

python -m tests.comm.plan.prove [FIRST LAST]
"""

import sys
from collections.abc import Iterable

from stack.comm.plan.check import check
from stack.comm.plan.generate.table import build
from stack.comm.plan.program import PlanKind
from tests.comm.plan.requests import CASES, requests


def prove(kind: PlanKind, name: str, sizes: Iterable[int], cuts: Iterable[int] = (1,)) -> int:
    """Check every program of a generator in every form; gives their number."""
    number = 0
    for request in requests(kind, name, sizes, cuts):
        proof = check(build(name, request))
        assert proof.wide or not request.wide, request
        number += 1
    return number


def main(first: int = 1, last: int = 33) -> None:
    """Print how many programs of each generator were proved."""
    for kind, name in CASES:
        number = prove(kind, name, range(first, last + 1))
        sys.stdout.write(f"{kind.value} {name}: {number} programs, {first} to {last} ranks\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
