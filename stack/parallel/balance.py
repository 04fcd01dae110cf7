"""How work is divided among ranks that are not equally fast: parts of a model among the chunks of a
pipeline, and pieces of a batch among ranks that all have the model. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf, isfinite

from hal.core.errors import InvalidCall


def even_chunks(times: Mapping[str, float], speeds: Sequence[float]) -> dict[str, int]:
    """The chunk of each part of a model, as `pipeline` takes them: the chunk that takes longest
    takes as little time as any cut of the model in its order lets it.

    `times` has what each part takes, by patterns of its parameters' names and in the model's order;
    `speeds` how fast the rank of each chunk is, both in any unit. Every chunk gets a part. Raises
    InvalidCall for fewer parts than chunks, and for times and speeds that are none.
    """
    if not 1 <= len(speeds) <= len(times):
        raise InvalidCall(
            f"{len(times)} parts of a model cannot be {len(speeds)} chunks; give each chunk a part"
        )
    if any(not (isfinite(t) and t >= 0) for t in times.values()):
        raise InvalidCall(f"times are {list(times.values())}; each is a number of at least 0")
    _check_speeds(speeds)
    before = [0.0, *accumulate(times.values())]
    # For each number of parts the longest time of the first chunks that have them, and where the
    # last of these begins.
    longest, begins = [0.0, *[inf] * len(times)], []
    for speed in speeds:
        best = [(inf, 0)] * len(before)
        for end in range(1, len(before)):
            best[end] = min(
                (max(longest[begin], (before[end] - before[begin]) / speed), begin)
                for begin in range(end)
            )
        longest = [time for time, _ in best]
        begins.append([begin for _, begin in best])
    names, found, end = list(times), dict[str, int](), len(times)
    for chunk in reversed(range(len(speeds))):
        begin = begins[chunk][end]
        found |= dict.fromkeys(names[begin:end], chunk)
        end = begin
    return {name: found[name] for name in names}


def even_shares(speeds: Sequence[float], pieces: int) -> tuple[int, ...]:
    """How many of so many equal pieces of a batch each rank takes, as `data` takes them, so that
    the rank that takes longest takes as little time as any shares let it; each takes at least one.

    `speeds` has how fast each rank is, in any unit. Raises InvalidCall for fewer pieces than ranks,
    and for speeds that are none.
    """
    if not 1 <= len(speeds) <= pieces:
        raise InvalidCall(
            f"{pieces} pieces of a batch cannot be shared by {len(speeds)} ranks; give each a piece"
        )
    _check_speeds(speeds)
    counts = [1] * len(speeds)
    for _ in range(pieces - len(speeds)):
        # To the rank that is done first with one more: no order of giving ends earlier.
        rank = min(range(len(speeds)), key=lambda r: ((counts[r] + 1) / speeds[r], r))
        counts[rank] += 1
    return tuple(counts)


def _check_speeds(speeds: Sequence[float]) -> None:
    if any(not (isfinite(s) and s > 0) for s in speeds):
        raise InvalidCall(f"speeds are {list(speeds)}; each is a number above 0")
