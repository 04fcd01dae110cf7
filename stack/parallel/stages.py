"""A joint graph of forward and backward pass cut into the passes of a pipeline, and a rank's part
of a step by a schedule. Pure.

A chunk of the model is what its parameters say: a value of the forward pass belongs to the last
chunk whose parameters are below it; one below which there are none is computed wherever it is read.
What the backward pass computes belongs to the chunk that reads it, or to a later one whose
parameters or values it reads; the whole derivative by a value that goes from one chunk to another
belongs to the one that has read the value, and goes back. A parameter that a later chunk reads,
too, is sent like any other value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node, node, rebuild, toposort
from stack import ops as g
from stack.ops import OPS
from stack.ops.operator import OpKind
from stack.parallel.schedule import PASSES, Entry, Pass, Schedule

FREE = -1
"""The chunk of what belongs to none."""

MESSAGES = 1 << 20
"""The `turn` of the first message of a step: exchanges of the same ranks before it have less, those
behind it have more than `BEHIND`."""
BEHIND = 1 << 40


@dataclass(frozen=True, slots=True)
class State:
    """What a micro-batch leaves for the next one in the place of a leaf: a running statistic, for
    instance. `chunk` computes it, every rank where that is FREE."""

    value: Node
    chunk: int


@dataclass(frozen=True, slots=True)
class Joint:
    """What one micro-batch computes: `loss`, and by each leaf of `chunks` that is a parameter its
    gradient. `chunks` has the parameters' chunks, `arguments` the leaves that are the batch's, and
    `states` by its leaf each value that goes from one micro-batch to the next one. `draws` has the
    leaf for the place in the random stream at which the micro-batch begins to draw, and how many
    words it takes, if it draws."""

    loss: Node
    gradients: Mapping[Node, Node]
    chunks: Mapping[Node, int]
    arguments: tuple[Node, ...]
    depth: int
    states: Mapping[Node, State] = field(default_factory=dict)
    draws: tuple[Node, int] | None = None

    @property
    def forward(self) -> dict[Node, int]:
        """The chunk of each value of the forward pass, in topological order. A state belongs to the
        one that computes it for the next micro-batch."""
        states = {leaf: s.chunk for leaf, s in self.states.items() if s.chunk != FREE}
        values = (s.value for s in self.states.values())
        return chunks_of((self.loss, *values), {**self.chunks, **states})


def crossing(loss: Node, chunks: Mapping[Node, int]) -> dict[Node, int]:
    """The values of a forward pass that another chunk reads, with the first chunk that does: by
    them derivatives are needed, too."""
    forward = chunks_of((loss,), chunks)
    found: dict[Node, int] = {}
    for n, chunk in forward.items():
        for s in n.srcs:
            if FREE < forward[s] < chunk and s.dtype.is_float and s not in chunks:
                found[s] = min(found.get(s, chunk), chunk)
    return found


def chunks_of(roots: Sequence[Node], chunks: Mapping[Node, int]) -> dict[Node, int]:
    """The chunk of each value of a forward pass, in topological order."""
    found: dict[Node, int] = {}
    for n in toposort(roots):
        below = max((found[s] for s in n.srcs), default=FREE)
        found[n] = chunks.get(n, below)
    for chunk in range(1, max(found.values(), default=0) + 1):
        if not _at_one_value(found, chunks, chunk):
            _at_smallest_values(found, chunks, chunk)
    return found


def _read(found: Mapping[Node, int], chunks: Mapping[Node, int], chunk: int) -> list[Node]:
    """What a chunk or a later one reads of those before it, but parameters."""
    every = (s for n, c in found.items() if c >= chunk for s in n.srcs)
    return list(dict.fromkeys(s for s in every if FREE < found[s] < chunk and s not in chunks))


def _at_one_value(found: dict[Node, int], chunks: Mapping[Node, int], chunk: int) -> bool:
    """Where all that a chunk reads of those before it follows from one value, what follows from
    that is the chunk's own: a norm before its first parameter, for instance. Whether there is
    one."""
    read = _read(found, chunks, chunk)
    before = [n for n, c in found.items() if FREE < c < chunk and n not in chunks]
    for value in reversed(before):
        if all(_follows(r, value, found, chunks) for r in read):
            after = {_line_to_smallest(value, found, chunks)[-1]}
            for n in before:
                if n not in after and not after.isdisjoint(n.srcs):
                    after.add(n)
                    found[n] = chunk
            return True
    return False


def _at_smallest_values(found: dict[Node, int], chunks: Mapping[Node, int], chunk: int) -> None:
    """Let a chunk make of a smaller value what it alone reads."""
    readers: dict[Node, list[Node]] = {n: [] for n in found}
    for n in found:
        for s in n.srcs:
            readers[s].append(n)
    for value in _read(found, chunks, chunk):
        for n in _line_to_smallest(value, found, chunks)[:-1]:
            if any(found[r] < chunk for r in readers[n]):
                break
            found[n] = chunk


def _line_to_smallest(
    value: Node, found: Mapping[Node, int], chunks: Mapping[Node, int]
) -> list[Node]:
    """A value and those that it follows from one by one, up to the smallest, of equal ones the
    last: from the windows of a convolution to the image."""
    line, count = [value], 1
    while len(below := {s for s in value.srcs if found[s] != FREE}) == 1:
        (value,) = below
        if value in chunks:
            break
        line.append(value)
        if value.type.nbytes < line[count - 1].type.nbytes:
            count = len(line)
    return line[:count]


def _follows(
    root: Node, value: Node, found: Mapping[Node, int], chunks: Mapping[Node, int]
) -> bool:
    """Whether a value needs no chunk's values or parameters but through another one."""
    stack, seen = [root], set[Node]()
    while stack:
        n = stack.pop()
        if n is value or n in seen or found[n] == FREE:
            continue
        seen.add(n)
        if n in chunks:
            return False
        stack.extend(n.srcs)
    return True


def _given_back(
    d: Node, chunk: int, forward: Mapping[Node, int], returned: Mapping[Node, int]
) -> list[Node]:
    """Of the derivative by a value that `chunk` is the first to read, what it gives back: all of
    it, or the terms that this chunk or later ones compute. Where the value's own chunk reads it,
    too, as behind a block that something skips, a term follows from another derivative alone."""
    found, stack = [], [d]
    while stack:
        term = stack.pop()
        sums = [term]
        leaves = []
        while sums:
            n = sums.pop()
            if n.op == "add" and n not in forward and (n is d or n not in returned):
                sums += n.srcs
            else:
                leaves.append(_is_of_later(n, d, chunk, forward, returned))
        if all(leaves):
            found.append(term)
        elif len(leaves) > 1:
            stack += term.srcs
    return found or [d]


def _is_of_later(
    root: Node, d: Node, chunk: int, forward: Mapping[Node, int], returned: Mapping[Node, int]
) -> bool:
    """Whether a term of a derivative reads a value of this chunk or a later one before it comes to
    derivatives that chunks give back."""
    stack, seen = [root], set[Node]()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in forward:
            if forward[n] >= chunk:
                return True
        elif n is not d and n in returned:
            if returned[n] > chunk:
                return True
        else:
            stack.extend(n.srcs)
    return False


@dataclass(frozen=True, slots=True)
class Cut:
    """Where each value of a joint graph is computed, in topological order: `passes` has the pass
    and the chunk of those that belong to one."""

    joint: Joint
    order: tuple[Node, ...]
    passes: Mapping[Node, tuple[Pass, int]]


def cut(joint: Joint, returned: Mapping[Node, int]) -> Cut:
    """Cut a joint graph. `returned` has the derivatives by the values of `crossing`, and the chunks
    that compute them.

    Raises InvalidCall for a chunk without parameters.
    """
    missing = set(range(joint.depth)) - set(joint.chunks.values())
    if missing:
        raise InvalidCall(
            f"chunk {min(missing)} of {joint.depth} has no parameters; let every chunk have a part "
            "of the model"
        )
    forward = joint.forward
    ends = dict(forward)
    constant: set[Node] = set()  # what every rank has
    pinned = {
        part: chunk
        for d, chunk in returned.items()
        if d not in forward
        for part in _given_back(d, chunk, forward, returned)
    }
    outputs: dict[Node, int] = {}
    for p, d in joint.gradients.items():  # one of several parameters is computed by the last chunk
        outputs[d] = max(joint.chunks[p], outputs.get(d, FREE))
    values = (s.value for s in joint.states.values())
    order = tuple(toposort((joint.loss, *joint.gradients.values(), *values, *pinned)))
    readers: dict[Node, list[Node]] = {n: [] for n in order}
    for n in order:
        for s in n.srcs:
            readers[s].append(n)
        if n.op != "input" and constant.issuperset(n.srcs):
            constant.add(n)
    for n in reversed(order):
        if n in constant:
            ends[n] = FREE
        if n in forward or n in constant:
            continue
        asked = [ends[r] for r in readers[n]]
        read = [forward[s] for s in n.srcs if s in forward]
        ends[n] = max([*asked, *read, outputs.get(n, FREE), pinned.get(n, FREE)])
    behind: set[Node] = set()
    for n in reversed(order):
        sent = n in pinned or any(r in behind and ends[r] == ends[n] for r in readers[n])
        if n not in forward and sent:
            behind.add(n)
    # The first chunk gives nobody the gradient of its input: what the gradients of several of its
    # parameters need is its B, which is computed where the table has that.
    sending = {ends[n] for n in behind}
    bits = {d: 1 << i for i, d in enumerate(outputs)}
    needed: dict[Node, int] = {}
    for n in reversed(order):
        if n in forward or n in constant or ends[n] in sending:
            continue
        needed[n] = bits.get(n, 0)
        for r in readers[n]:
            needed[n] |= needed.get(r, 0)
        if needed[n].bit_count() > 1:
            behind.add(n)
    passes: dict[Node, tuple[Pass, int]] = {}
    homes = joint.chunks.keys() | {leaf for leaf, s in joint.states.items() if s.chunk != FREE}
    for n in order:
        is_whole = n.op == "const" or (n.op == "input" and n not in homes)
        own = n.op == "input" and all(ends[r] == ends[n] for r in readers[n])
        if ends[n] == FREE or is_whole or own:
            continue
        what: Pass = "F" if n in forward else "B" if n in behind else "W"
        passes[n] = what, ends[n]
    return Cut(joint, order, passes)


@dataclass(frozen=True, slots=True)
class Step:
    """A rank's part of a step: the gradients of its parameters, summed over the micro-batches in
    their order; what the last one leaves in the states of its chunks; the losses of all
    micro-batches, summed, on the rank that computes them; and what it sends, whose values are
    of no use."""

    gradients: Mapping[Node, Node]
    states: Mapping[Node, Node]
    loss: Node | None
    sent: tuple[Node, ...]


Where = tuple[Pass, int]
"""A pass, and the chunk that it goes through."""

Lane = tuple[Pass, int]
"""What messages follow one another: those of F, of B, or of W, from ranks of one colour, in one
direction around the ring of ranks. Neighbours have different colours, so a rank has the messages to
each of them and from each in lanes apart: none waits for what another rank has not asked for."""


def lanes(schedule: Schedule) -> list[Lane]:
    """The lanes of a pipeline."""
    kinds, ranks = PASSES if schedule.divides else PASSES[:2], schedule.ranks
    numbers = {_lane(s, t, ranks) for s in range(ranks) for t in range(ranks) if s != t} or {0}
    return [(what, number) for what in kinds for number in sorted(numbers)]


def _lane(source: int, target: int, ranks: int) -> int:
    """The number of the lane from one rank to another: colours, of which a ring of an odd number of
    ranks needs a third one, and behind them those of the other direction."""
    colour = 2 if source == ranks - 1 and ranks % 2 else source % 2
    return colour + 3 * (2 * ((target - source) % ranks) > ranks)


def step_of(
    found: Cut,
    schedule: Schedule,
    rank: int,
    groups: Mapping[Lane, str],
    call: Callable[[str], str] = str,
) -> Step:
    """What a rank computes of a step, in the order of its row. `groups` has for each lane what the
    devices' engines call the ranks in it; `call` gives a message the name that both ranks have for
    it. Raises InvalidCall where a chunk has states and takes micro-batches in another order than
    theirs."""
    for chunk in sorted({s.chunk for s in found.joint.states.values()} - {FREE}):
        row = schedule.rows[schedule.rank_of(chunk)]
        own = [e.batch for e in row if (e.what, e.chunk) == ("F", chunk)]
        if own != sorted(own):
            raise InvalidCall(
                f"chunk {chunk} changes a buffer in each forward pass, as running statistics are, "
                f"and the schedule has them in the order {', '.join(f'F{chunk}.{m}' for m in own)};"
                " let micro-batches go through it one after the other"
            )
    return _Building(found, schedule, rank, groups, call).step()


class _Building:
    """`late` is what needs a pass W of another rank, for which no pass of this one waits. `totals`
    has the sums of the first micro-batches' gradients by parameter, `added` how many of them.

    `done` is what the entries of the row have given that no message waits for yet: the next one
    begins behind it. `unsent` has the part of it that passes give, and the parameters whose sums
    are the rest.

    `kept` has what was sent, with the place in the row behind which its memory may be used again.
    Until a rank is known to have asked for a message, nothing may wait for its end: that rank may
    wait in turn for one that this one has not asked for yet. It is known by a message that the rank
    sends later."""

    def __init__(
        self,
        found: Cut,
        schedule: Schedule,
        rank: int,
        groups: Mapping[Lane, str],
        call: Callable[[str], str],
    ) -> None:
        self.cut, self.schedule, self.rank = found, schedule, rank
        self.groups, self.call = groups, call
        self.made: dict[tuple[Node, int], Node] = {}
        self.done: tuple[Node, ...] = ()
        self.unsent: tuple[list[Node], set[Node]] = [], set()
        self.totals: dict[Node, Node] = {}
        self.added: dict[Node, int] = dict.fromkeys(
            (p for p in found.joint.gradients if found.joint.chunks[p] in schedule.chunks[rank]), 0
        )
        self.messages: dict[str, Node] = {}
        self.kept: list[tuple[int, Node]] = []
        self.rows: dict[Where, list[Node]] = {}
        self.now = 0
        for n in found.order:
            if n in found.passes:
                what, chunk = found.passes[n]
                self.rows.setdefault(self._key((what, chunk)), []).append(n)
        self.read_by: dict[Node, set[int]] = {n: set() for n in found.order}
        self.given = {found.joint.loss}  # what passes give to those of other chunks
        inner: set[Node] = set()  # what they read themselves
        self.readers: dict[tuple[Where, int], set[Where]] = {}  # of a pass, on each rank
        self.sources: dict[Where, set[Where]] = {}  # on other ranks
        self.place = [{entry: i for i, entry in enumerate(row)} for row in schedule.rows]
        for n in found.order:
            if n in found.passes:
                for s in self._read(n):
                    reader = schedule.rank_of(found.passes[n][1])
                    self.read_by[s].add(reader)
                    source, own = self._key(found.passes[s]), self._key(found.passes[n])
                    self.readers.setdefault((source, reader), set()).add(own)
                    if found.passes[s][1] != found.passes[n][1]:
                        self.given.add(s)
                    if source == own:
                        inner.add(s)
                    if schedule.rank_of(source[1]) != reader == rank:
                        self.sources.setdefault(own, set()).add(source)

        # Several parameters may have one gradient, which the last chunk of theirs computes.
        self.taken: dict[Where, list[Node]] = {}
        """Gradients that passes of this rank take from others."""
        for p, d in found.joint.gradients.items():
            own = self._key(("W", found.joint.chunks[p]))
            reader = schedule.rank_of(own[1])
            if d in found.passes and reader != schedule.rank_of(found.passes[d][1]):
                source = self._key(found.passes[d])
                self.read_by[d].add(reader)
                self.given.add(d)
                self.readers.setdefault((source, reader), set()).add(own)
                if reader == rank:
                    self.sources.setdefault(own, set()).add(source)
                    if source[0] == "B":  # what a W gives comes last
                        self.taken.setdefault(own, []).append(d)

        # A B that goes to no other chunk gives its results to W alone.
        for (what, _), own_row in self.rows.items():
            if schedule.divides and what == "B" and self.given.isdisjoint(own_row):
                self.given.update(n for n in own_row if n not in inner)

        self.late: set[Node] = set()
        for n in found.order if schedule.divides else ():
            if found.passes.get(n, ("F", 0))[0] == "W":
                foreign = (s for s in self._read(n) if found.passes[s][0] == "W")
                if any(s in self.late or self._source(s) is not None for s in foreign):
                    self.late.add(n)

        # The order is that of all ranks; below parameters they have nodes of their own.
        sent = (n for n in found.order if len(self.read_by[n] | self._home(n)) > 1)
        self.number = {n: i for i, n in enumerate(sent)}
        self.begun = 0
        """Messages so far."""

    def _home(self, n: Node) -> set[int]:
        return {self.schedule.rank_of(self.cut.passes[n][1])} if n in self.cut.passes else set()

    def _read(self, n: Node) -> list[Node]:
        """The values of passes that a node needs, through those that belong to none."""
        values, stack, seen = [], list(n.srcs), set[Node]()
        while stack:
            s = stack.pop()
            if s in seen:
                continue
            seen.add(s)
            if s in self.cut.passes:
                values.append(s)
            else:
                stack.extend(s.srcs)
        return values

    def step(self) -> Step:
        sent: list[Node] = []
        for place, entry in enumerate(self.schedule.rows[self.rank]):
            self.now, begun = place, self.begun
            own = self.rows.get((entry.what, entry.chunk), [])
            for n in own:
                if n not in self.late:
                    self._value(n, entry.batch)
            for d in self.taken.get((entry.what, entry.chunk), ()):
                self._value(d, entry.batch)
            sent += self._sends(own, entry)
            if self.begun > begun:  # behind all entries before this one
                self.unsent = [], set()
            gives, summed = self.unsent
            gives += (self.made[n, entry.batch] for n in own if n in self.given - self.late)
            summed |= self._summed()
            self.done = _computed([*gives, *(t for p, t in self.totals.items() if p in summed)])
        if self.schedule.divides:
            # What passes W of other ranks give this one: gradients of parameters, or parts of
            # them, which nobody waits for.
            for source, row in enumerate(self.schedule.rows):
                for entry in row if source != self.rank else ():
                    own = self.rows.get((entry.what, entry.chunk), [])
                    if entry.what == "W" and any(self.rank in self.read_by[n] for n in own):
                        self._receive(own[0], entry.batch)
        joint, batches = self.cut.joint, self.schedule.batches
        for p in self.added:
            for m in range(batches):
                self._value(joint.gradients[p], m)
        self._summed()
        loss = None
        _, home = self.cut.passes.get(joint.loss, ("F", 0))  # the last ones may compute nothing
        if home in self.schedule.chunks[self.rank]:
            loss = self._value(joint.loss, 0)
            for m in range(1, batches):
                loss = g.add(loss, self._value(joint.loss, m))
        own_chunks = (FREE, *self.schedule.chunks[self.rank])
        states = {
            leaf: self._value(s.value, batches - 1)
            for leaf, s in joint.states.items()
            if s.chunk in own_chunks
        }
        return Step(self.totals, states, loss, tuple(sent))

    def _summed(self) -> set[Node]:
        """The parameters whose sums go further now, each as far as its micro-batches are there one
        after the other."""
        found = set()
        for p, begin in self.added.items():
            d, end = self.cut.joint.gradients[p], begin
            while (d, end) in self.made:
                own = self.made[d, end]
                self.totals[p] = g.add(self.totals[p], own) if end else own
                end += 1
            if end > begin:
                self.added[p] = end
                found.add(p)
        return found

    def _value(self, root: Node, batch: int) -> Node:
        """A value of a micro-batch on this rank: computed, received, or a part of the batch."""
        stack = [root]
        while stack:
            n = stack[-1]
            if (n, batch) in self.made:
                stack.pop()
                continue
            source = self._source(n)
            waiting = [s for s in n.srcs if (s, batch) not in self.made] if source is None else []
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if source is not None:
                self._receive(n, batch)
                continue
            if n in self.cut.joint.arguments:
                made = self._argument(n, batch)
            elif batch and n in self.cut.joint.states:
                made = self._value(self.cut.joint.states[n].value, batch - 1)
            elif self.cut.joint.draws is not None and n is self.cut.joint.draws[0]:
                words = batch * self.cut.joint.draws[1]
                made = g.add(n, g.const(words, n.dtype)) if words else n
            else:
                made = rebuild(n, tuple(self.made[s, batch] for s in n.srcs))
            self.made[n, batch] = made
        return self.made[root, batch]

    def _source(self, n: Node) -> int | None:
        """The other rank that computes a value."""
        if n not in self.cut.passes:
            return None
        rank = self.schedule.rank_of(self.cut.passes[n][1])
        return None if rank == self.rank else rank

    def _argument(self, n: Node, batch: int) -> Node:
        """The rows of a micro-batch; `n` is of one, the input of the step of all."""
        rows = n.shape[0]
        whole = g.input(n["slot"], n.type.with_shape((rows * self.schedule.batches, *n.shape[1:])))
        return g.slice_axis(whole, 0, batch * rows, (batch + 1) * rows)

    def _name(self, n: Node, batch: int) -> str:
        what, chunk = self.cut.passes[n]
        return self.call(f"value {self.number[n]} of {what}{chunk}.{batch}")

    def _receive(self, n: Node, batch: int) -> None:
        """All that the pass of a value gives this rank, in the order in which it is sent. What the
        same pass gives in a chunk before it comes first, though a later entry reads it: its rank
        may send the other one its own behind that."""
        what, chunk = self._key(self.cut.passes[n])
        before = {"F": range(chunk), "B": range(self.schedule.depth - 1, chunk, -1)}.get(what, ())
        for c in (*before, chunk):
            source = self.schedule.rank_of(c)
            for x in self.rows.get((what, c), ()) if source != self.rank else ():
                if self.rank in self.read_by[x] and (x, batch) not in self.made:
                    pair, name = (source, self.rank), self._name(x, batch)
                    self.made[x, batch] = self._begun(g.full_like(x, 0), pair, x, name)

    def _key(self, where: Where) -> Where:
        what, chunk = where
        return ("B" if what == "W" and not self.schedule.divides else what), chunk

    def _begun(self, given: Node, pair: tuple[int, int], x: Node, name: str) -> Node:
        """A message, behind the one before it in its lane and the whole entry before its own, so a
        rank computes in the order of its row. It does not wait for the rest of its own entry: what
        a backward pass gives another rank is on its way before gradients of parameters are."""
        what = self._key(self.cut.passes[x])[0]
        group = self.groups[what, _lane(*pair, self.schedule.ranks)]
        before = self.messages.get(group)
        kept = (x for _, x in self.kept)
        after = dict.fromkeys((*([] if before is None else [before]), *self.done, *kept))
        self.kept = [(until, x) for until, x in self.kept if until >= self.now]
        made = g.send_receive(given, [pair], group, name, after=tuple(after))
        turn = MESSAGES + self.begun
        self.begun += 1
        self.messages[group] = node(made.op, made.type, made.srcs, **dict(made.attrs), turn=turn)
        return self.messages[group]

    def _sends(self, own: Sequence[Node], entry: Entry) -> list[Node]:
        sent = []
        for other in range(self.schedule.ranks):
            given = [n for n in own if other in self.read_by[n]] if other != self.rank else []
            for n in given:
                x = self.made[n, entry.batch]
                name = self._name(n, entry.batch)
                sent.append(self._begun(x, (self.rank, other), n, name))
            if given:
                until = self._known(entry, other)
                self.kept += [(until, self.made[n, entry.batch]) for n in given]
        return sent

    def _known(self, entry: Entry, other: int) -> int:
        """The place in the row at which a message has come that another rank sends after it has
        asked for all that this entry gives it; behind the row, if there is none."""
        place, row = self.place[other], self.schedule.rows[self.rank]
        readers = self.readers[(entry.what, entry.chunk), other]
        asked = max(place[Entry(*reader, entry.batch)] for reader in readers)
        for i in range(self.now + 1, len(row)):
            for what, chunk in self.sources.get((row[i].what, row[i].chunk), ()):
                if place.get(Entry(what, chunk, row[i].batch), -1) >= asked:
                    return i
        return len(row)


def _computed(values: Sequence[Node]) -> tuple[Node, ...]:
    """What values are views of, without leaves: nothing is computed for being waited for."""
    found: dict[Node, None] = {}
    for n in values:
        while OPS[n.op].kind is OpKind.MOVEMENT and len(n.srcs) == 1:
            n = n.srcs[0]
        if n.srcs:
            found[n] = None
    return tuple(found)
