"""What the launcher says at the end of a job that went wrong: the first cause on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from stack.launch.job import Cause, ended
from stack.launch.lines import last_exception
from stack.launch.seats import Host, Seat

TAIL_LINES = 20


def report(
    cause: Cause,
    hosts: Sequence[Host],
    seats: Sequence[Seat],
    statuses: Mapping[int, int],
    last: Sequence[str],
) -> str:
    """Lines for people: the first cause, the end of what that rank wrote to standard error
    (`last`), and what became of the others by its end."""
    return "\n".join(_lines(cause, hosts, seats, statuses, last))


def _lines(
    cause: Cause,
    hosts: Sequence[Host],
    seats: Sequence[Seat],
    statuses: Mapping[int, int],
    last: Sequence[str],
) -> Iterator[str]:
    exception = last_exception(list(last))
    yield f"hal run: {cause.text}" + (f": {exception}" if exception else "")
    if cause.rank is not None:
        seat = seats[cause.rank]
        yield f"  rank {seat.rank} ran on {hosts[seat.host]}, device {seat.device}"
        if last:
            yield "  it wrote last to standard error:"
            yield from (f"    {line}" for line in last[-TAIL_LINES:])
    # How the other ranks ended, those that ended alike in one line.
    alike: dict[str, list[int]] = {}
    for seat in seats:
        if seat.rank != cause.rank and statuses:
            status = statuses.get(seat.rank)
            how = "not known" if status is None else ended(status)
            alike.setdefault(how, []).append(seat.rank)
    for how, ranks in alike.items():
        named = ", ".join(_runs(ranks))
        yield f"  rank {named}: {how}" if len(ranks) == 1 else f"  ranks {named}: {how}"


def _runs(ranks: Sequence[int]) -> Iterator[str]:
    """Increasing numbers in words, three and more in a row as "4-9"."""
    for _, row in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        first, *rest = (rank for _, rank in row)
        if len(rest) > 1:
            yield f"{first}-{rest[-1]}"
        else:
            yield from map(str, (first, *rest))
