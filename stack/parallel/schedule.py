"""Schedules of pipelines as tables in text: what each rank computes, in which order.

    chunks 0 | 1
    rank 0: F0.0 F0.1 B0.0 B0.1
    rank 1: F1.0 B1.0 F1.1 B1.1

`F2.5` is the forward pass of micro-batch 5 through chunk 2, `B` its backward pass. Where that is
divided, `B` is the gradient of the chunk's input and `W` that of its parameters. `chunks` has the
chunks of the model that each rank has; forward passes go from chunk 0 up. The generators are those
of GPipe (Huang et al., 2019), 1F1B (Narayanan et al., SOSP 2019), interleaved 1F1B (Narayanan et
al., SC 2021), ZB-H1 and ZB-V (Qi et al., ICLR 2024), and DualPipe (DeepSeek-AI, 2024) with the
parameters once.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass

Pass = Literal["F", "B", "W"]
PASSES: tuple[Pass, ...] = ("F", "B", "W")


class Entry(NamedTuple):
    """A pass of a micro-batch through a chunk."""

    what: Pass
    chunk: int
    batch: int

    def __str__(self) -> str:
        return f"{self.what}{self.chunk}.{self.batch}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`chunks` has those of each rank, `rows` what each rank computes in order."""

    chunks: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[Entry, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @property
    def batches(self) -> int:
        """Micro-batches in a step."""
        return 1 + max((e.batch for row in self.rows for e in row), default=-1)

    @property
    def depth(self) -> int:
        """The chunks of the model."""
        return sum(len(own) for own in self.chunks)

    @property
    def divides(self) -> bool:
        """Whether gradients of parameters are computed apart."""
        return any(e.what == "W" for row in self.rows for e in row)

    def rank_of(self, chunk: int) -> int:
        """Which rank has a chunk. Raises InvalidCall for one that no rank has."""
        for rank, own in enumerate(self.chunks):
            if chunk in own:
                return rank
        raise InvalidCall(f"no rank has chunk {chunk}; they have {self.chunks}")

    def __str__(self) -> str:
        chunks = " | ".join(" ".join(map(str, own)) for own in self.chunks)
        rows = (f"rank {r}: {' '.join(map(str, row))}" for r, row in enumerate(self.rows))
        return "\n".join((f"chunks {chunks}", *rows)) + "\n"

    @staticmethod
    def parse(text: str) -> Schedule:
        """A schedule from its text. Raises InvalidCall with the line that is none."""
        chunks: tuple[tuple[int, ...], ...] = ()
        rows: list[tuple[Entry, ...]] = []
        for number, line in enumerate(text.splitlines(), 1):
            said = line.partition("#")[0].strip()
            try:
                if said.startswith("chunks "):
                    parts = said.removeprefix("chunks ").split("|")
                    chunks = tuple(tuple(map(int, own.split())) for own in parts)
                elif said:
                    entries = said.removeprefix(f"rank {len(rows)}:")
                    rows.append(tuple(_entry(word) for word in entries.split()))
            except ValueError:
                raise InvalidCall(
                    f"line {number} of the schedule is {line.strip()!r}; it takes `chunks 0 | 1` "
                    f"or `rank {len(rows)}: F0.0 B0.0`"
                ) from None
        if len(chunks) != len(rows) or not rows:
            raise InvalidCall(
                f"the schedule has chunks of {len(chunks)} ranks and {len(rows)} rows; write "
                "`chunks 0 | 1`, with those of each rank, and a row for each"
            )
        return Schedule(chunks, tuple(rows))


def _entry(word: str) -> Entry:
    match = re.fullmatch(r"([FBW])(\d+)\.(\d+)", word)
    if match is None:
        raise ValueError(word)
    what: Pass = "F" if match[1] == "F" else "B" if match[1] == "B" else "W"
    return Entry(what, int(match[2]), int(match[3]))


# how long it takes


@dataclass(frozen=True, slots=True)
class Durations:
    """Of the passes of one chunk, in any unit. `backward` is that of B alone; without W in the
    schedule B takes `backward` and `weights` together."""

    forward: Fraction = Fraction(1)
    backward: Fraction = Fraction(1)
    weights: Fraction = Fraction(1)

    def of(self, entry: Entry, divides: bool) -> Fraction:
        if entry.what == "F":
            return self.forward
        if entry.what == "W":
            return self.weights
        return self.backward if divides else self.backward + self.weights


@dataclass(frozen=True, slots=True)
class Walked:
    """When each pass begins and ends, if nothing but order and dependencies holds it up; the length
    of a step, what each rank works in it, and the most forward passes of a rank whose activations
    it holds at one time (until B, or until W where that is apart)."""

    times: Mapping[Entry, tuple[Fraction, Fraction]]
    length: Fraction
    work: tuple[Fraction, ...]
    held: tuple[int, ...]

    @property
    def bubble(self) -> Fraction:
        """Idle time over working time, of the rank that idles least."""
        return min((self.length - own) / own for own in self.work)


def before(entry: Entry, depth: int) -> list[Entry]:
    """The passes that one needs to be done."""
    what, chunk, batch = entry
    if what == "F":
        return [Entry("F", chunk - 1, batch)] if chunk else []
    if what == "W":
        return [Entry("B", chunk, batch)]
    later = [Entry("B", chunk + 1, batch)] if chunk + 1 < depth else []
    return [Entry("F", chunk, batch), *later]


def walk(schedule: Schedule, durations: Durations = Durations()) -> Walked:
    """The times of all passes, each as early as its rank and what it needs allow. Raises
    InvalidCall with the passes that all wait for another one: a deadlock."""
    depth, divides = schedule.depth, schedule.divides
    left = [deque(row) for row in schedule.rows]
    free = [Fraction(0)] * schedule.ranks
    times: dict[Entry, tuple[Fraction, Fraction]] = {}
    while any(left):
        went = False
        for rank, row in enumerate(left):
            while row and all(need in times for need in before(row[0], depth)):
                entry = row.popleft()
                ready = max([free[rank], *(times[need][1] for need in before(entry, depth))])
                free[rank] = ready + durations.of(entry, divides)
                times[entry] = ready, free[rank]
                went = True
        if not went:
            waits = ", ".join(
                f"rank {rank} waits at {row[0]} for "
                + " and ".join(str(n) for n in before(row[0], depth) if n not in times)
                for rank, row in enumerate(left)
                if row
            )
            raise InvalidCall(f"the schedule never ends: {waits}")
    work = tuple(sum((durations.of(e, divides) for e in row), Fraction(0)) for row in schedule.rows)
    held = tuple(_held(row, divides) for row in schedule.rows)
    return Walked(times, max(free), work, held)


def _held(row: Sequence[Entry], divides: bool) -> int:
    """The most activations at one time, counted in chunks."""
    now = most = 0
    for entry in row:
        now += entry.what == "F"
        most = max(most, now)
        now -= entry.what == ("W" if divides else "B")
    return most


# proof


def check(schedule: Schedule, held: Sequence[int] | None = None) -> Walked:
    """Prove that a schedule can run, and give its walk. Raises InvalidCall with the reason.

    Every pass of every micro-batch through every chunk is there once, on the rank that has the
    chunk; what it needs comes before it on its rank; no ranks wait for one another; two ranks have
    the messages between them in one order, each kind by itself; no rank holds more activations than
    `held` says, if it says.
    """
    if schedule.batches < 1:
        raise InvalidCall("the schedule has no micro-batch; give it one at least")
    have = sorted(chunk for own in schedule.chunks for chunk in own)
    if have != list(range(len(have))):
        raise InvalidCall(f"ranks have chunks {schedule.chunks}; each of 0, 1, ... is there once")
    _check_entries(schedule)
    for rank, row in enumerate(schedule.rows):
        place = {entry: i for i, entry in enumerate(row)}
        for entry in row:
            for need in before(entry, schedule.depth):
                if need in place and place[need] > place[entry]:
                    raise InvalidCall(
                        f"rank {rank} computes {entry} before {need}, which it needs; let {need} "
                        "come first"
                    )
    _check_messages(schedule)
    found = walk(schedule)
    for rank, (most, own) in enumerate(zip(held or found.held, found.held, strict=True)):
        if own > most:
            raise InvalidCall(
                f"rank {rank} holds the activations of {own} passes at one time, of {most} that "
                "it may; begin forward passes later, or backward passes earlier"
            )
    return found


def _check_entries(schedule: Schedule) -> None:
    kinds = PASSES if schedule.divides else PASSES[:2]
    for rank, row in enumerate(schedule.rows):
        seen: set[Entry] = set()
        for entry in row:
            if entry.chunk not in schedule.chunks[rank]:
                raise InvalidCall(
                    f"rank {rank} computes {entry}, but has no chunk {entry.chunk}; move it to "
                    "the row of the rank that has"
                )
            if entry in seen:
                raise InvalidCall(f"rank {rank} computes {entry} twice; leave one of them out")
            seen.add(entry)
        for chunk in schedule.chunks[rank]:
            for batch in range(schedule.batches):
                for what in kinds:
                    if Entry(what, chunk, batch) not in seen:
                        lost = Entry(what, chunk, batch)
                        raise InvalidCall(f"rank {rank} lacks {lost}; write it into its row")


def messages(schedule: Schedule, rank: int) -> list[tuple[int, int, Entry]]:
    """What a rank sends and receives, in its order: (from, to, the pass that gives it)."""
    found = []
    for entry in schedule.rows[rank]:
        if entry.what == "W":
            continue
        for need in before(entry, schedule.depth):
            source = schedule.rank_of(need.chunk)
            if need.what == entry.what and source != rank:
                found.append((source, rank, need))
        step = 1 if entry.what == "F" else -1
        if 0 <= entry.chunk + step < schedule.depth:
            target = schedule.rank_of(entry.chunk + step)
            if target != rank:
                found.append((rank, target, entry))
    return found


def _check_messages(schedule: Schedule) -> None:
    """Messages of one direction of passes between two ranks leave in the order in which they are
    asked for."""
    every = [messages(schedule, rank) for rank in range(schedule.ranks)]
    for a in range(schedule.ranks):
        for b in range(schedule.ranks):
            if a == b:
                continue
            lanes = sorted({(e.what, e.chunk) for s, t, e in every[a] if (s, t) == (a, b)})
            for what, chunk in lanes:

                def lane(
                    rank: int, a: int = a, b: int = b, what: str = what, chunk: int = chunk
                ) -> list[Entry]:
                    return [
                        e
                        for s, t, e in every[rank]
                        if (s, t) == (a, b) and (e.what, e.chunk) == (what, chunk)
                    ]

                sent, asked = lane(a), lane(b)
                for one, other in zip(sent, asked, strict=False):
                    if one != other:
                        raise InvalidCall(
                            f"rank {a} sends {one} where rank {b} asks for {other}: messages "
                            "between them come in another order; give both rows the same one"
                        )


# tables that have names


def gpipe(ranks: int, batches: int) -> Schedule:
    """All forward passes, then all backward passes."""
    rows = [
        [Entry("F", r, m) for m in range(batches)] + [Entry("B", r, m) for m in range(batches)]
        for r in range(ranks)
    ]
    return _table(rows)


def one_f_one_b(ranks: int, batches: int) -> Schedule:
    """After p - r forward passes on rank r of p one backward pass for each forward pass. Raises
    InvalidCall for fewer micro-batches than ranks."""
    _need(ranks, batches)
    rows = []
    for r in range(ranks):
        warm = ranks - r - 1
        row = [Entry("F", r, m) for m in range(warm)]
        for m in range(batches):
            row += [Entry("F", r, m + warm)] * (m + warm < batches) + [Entry("B", r, m)]
        rows.append(row)
    return _table(rows)


def interleaved(ranks: int, batches: int, chunks: int) -> Schedule:
    """1F1B with `chunks` chunks on each rank, chunk c on rank c modulo p; the micro-batches are a
    multiple of the ranks. Raises InvalidCall where they are not."""
    _need(ranks, batches)
    if batches % ranks:
        raise InvalidCall(
            f"interleaved takes a multiple of {ranks} micro-batches, not {batches}; take "
            f"{-(-batches // ranks) * ranks}"
        )
    total = batches * chunks
    rows = []
    for r in range(ranks):

        def forward(k: int, r: int = r) -> Entry:
            group, rest = divmod(k, ranks * chunks)
            return Entry("F", rest // ranks * ranks + r, group * ranks + rest % ranks)

        def backward(k: int, r: int = r) -> Entry:
            group, rest = divmod(k, ranks * chunks)
            chunk = (chunks - 1 - rest // ranks) * ranks + r
            return Entry("B", chunk, group * ranks + rest % ranks)

        warm = min(total, 2 * (ranks - r - 1) + (chunks - 1) * ranks)
        row = [forward(k) for k in range(warm)]
        for k in range(total):
            row += [forward(k + warm)] * (k + warm < total) + [backward(k)]
        rows.append(row)
    own = tuple(tuple(range(r, ranks * chunks, ranks)) for r in range(ranks))
    return Schedule(own, tuple(map(tuple, rows)))


def zb_h1(ranks: int, batches: int) -> Schedule:
    """1F1B whose gradients of parameters fill the bubble behind: W comes r backward passes late on
    rank r, so that no rank holds more than the first one of 1F1B. A third of the bubble of 1F1B
    where F, B and W take equally long. Raises InvalidCall for fewer micro-batches than ranks."""
    _need(ranks, batches)
    rows = []
    for r in range(ranks):
        warm, late = ranks - r - 1, r
        row = [Entry("F", r, m) for m in range(warm)]
        for m in range(batches):
            row += [Entry("F", r, m + warm)] * (m + warm < batches) + [Entry("B", r, m)]
            row += [Entry("W", r, m - late)] * (m >= late)
        row += [Entry("W", r, m) for m in range(batches - late, batches)]
        rows.append(row)
    return _table(rows)


def zb_v(ranks: int, batches: int) -> Schedule:
    """Two chunks on each rank in a V: chunk r and chunk 2p - 1 - r. Made by a walk in unit time
    that gives each rank, whenever it is free, B before F before W, and no more than 2p chunks'
    activations. It is not the authors' own table, which leaves no rank idle between its first and
    last pass: at (p, m) = (4, 8) this one leaves rank 0 idle for 3 of 51. Raises InvalidCall for
    fewer micro-batches than 2p."""
    _need_twice("ZB-V", ranks, batches)
    own = tuple((r, 2 * ranks - 1 - r) for r in range(ranks))
    return _greedy(own, batches, 2 * ranks)


def dualpipe_v(ranks: int, batches: int) -> Schedule:
    """DualPipe in its authors' form that keeps parameters once (DualPipeV): chunks in a V as in
    ZB-V, whose second halves stand for the pipeline in the other direction. In the middle a forward
    pass of one half follows each backward pass of the other, so that what one of them exchanges can
    go beside the other's work; only at the begin and the end come gradients of parameters late.
    Where F, B and W take equally long, every rank idles for p - 1 of them, and it holds at most
    2p + 1 chunks' activations. Raises InvalidCall for fewer micro-batches than 2p."""
    _need_twice("DualPipe", ranks, batches)
    own = tuple((r, 2 * ranks - 1 - r) for r in range(ranks))
    return Schedule(own, tuple(_dualpipe_row(r, ranks, batches) for r in range(ranks)))


def _dualpipe_row(rank: int, ranks: int, batches: int) -> tuple[Entry, ...]:
    first, second = rank, 2 * ranks - 1 - rank
    row: list[Entry] = []
    owed: deque[Entry] = deque()

    def add(what: Pass, chunk: int) -> Entry:
        done = sum(e.what == what and e.chunk == chunk for e in row)
        row.append(Entry(what, chunk, done))
        return row[-1]

    def backward(chunk: int, late: bool = False) -> None:
        owed.append(add("B", chunk)._replace(what="W"))
        while owed and not late:
            row.append(owed.popleft())

    inner = ranks - rank - 1  # ranks between this one and the bottom of the V
    for _ in range(2 * inner):
        add("F", first)
    for _ in range(rank + 1):
        add("F", first)
        add("F", second)
    for _ in range(inner):
        backward(second)
        add("F", second)
    for _ in range(batches - 2 * ranks + rank + 1):
        add("F", first)
        backward(second)
        add("F", second)
        backward(first)
    for _ in range(inner):
        backward(second)
        add("F", second)
        backward(first)
    for i in range(rank + 1):
        half = (rank + 1) // 2
        backward(second, late=i > half or (i == half and rank % 2 == 1))
        backward(first, late=i >= half)
    for _ in range(inner):
        row.append(owed.popleft())
        backward(first, late=True)
    return (*row, *owed)


def _greedy(own: tuple[tuple[int, ...], ...], batches: int, most: int) -> Schedule:
    """A table by a walk in unit time. Of what a rank can compute comes B first, then F of the
    deepest chunk, then W; W first when it holds `most`."""
    ranks, depth = len(own), sum(map(len, own))
    done: dict[Entry, int] = {}
    rows: list[list[Entry]] = [[] for _ in own]
    held = [0] * ranks
    clock, total = 0, 3 * depth * batches
    while len(done) < total:
        now = []
        for r in range(ranks):
            ready: list[Entry] = []
            for chunk in own[r]:
                for what in PASSES:
                    batch = sum(e.what == what and e.chunk == chunk for e in rows[r])
                    entry = Entry(what, chunk, batch)
                    if batch < batches and all(
                        done.get(need, clock) < clock for need in before(entry, depth)
                    ):
                        ready.append(entry)
            if held[r] >= most:
                ready = [e for e in ready if e.what != "F"]
            elif held[r] >= most - 1:
                # The last place is kept for the chunk whose backward pass frees others.
                ready = [e for e in ready if e.what != "F" or e.chunk == max(own[r])]
            if ready:
                now.append((r, min(ready, key=lambda e: ("BFW".index(e.what), -e.chunk))))
        for r, entry in now:
            rows[r].append(entry)
            done[entry] = clock
            held[r] += (entry.what == "F") - (entry.what == "W")
        clock += 1
        if not now and clock > 4 * total:
            raise InvalidCall(f"no schedule of {batches} micro-batches on chunks {own} was found")
    return Schedule(own, tuple(map(tuple, rows)))


def _need(ranks: int, batches: int) -> None:
    if batches < ranks:
        raise InvalidCall(
            f"a pipeline of {ranks} ranks takes at least {ranks} micro-batches, not {batches}; "
            "take more of them, or fewer ranks"
        )


def _need_twice(name: str, ranks: int, batches: int) -> None:
    if batches < 2 * ranks:
        raise InvalidCall(
            f"{name} on {ranks} ranks takes at least {2 * ranks} micro-batches, not {batches}; "
            "take more of them, or fewer ranks"
        )


def _table(rows: Sequence[Sequence[Entry]]) -> Schedule:
    return Schedule(tuple((r,) for r in range(len(rows))), tuple(map(tuple, rows)))
