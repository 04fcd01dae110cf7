"""Which parts of a model are together in a chunk of a pipeline, by the time that they take and the
speed of the ranks that compute them. Pure."""

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
    if any(not (isfinite(s) and s > 0) for s in speeds):
        raise InvalidCall(f"speeds are {list(speeds)}; each is a number above 0")
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
