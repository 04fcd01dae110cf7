"""Sums of products that are one product: over a batch, and over windows that overlap.

These come from gradients: of weights that a batch shares, and of what windows look at. What a sum
runs over becomes part of the product's depth, so that nothing of the size of all terms is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product as every
from math import prod

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, rebuild, toposort
from hal.tile.size import hint, is_fixed
from stack import ops as build
from stack.compiler.graph.access import Axis, Index, axis_index, regroup
from stack.compiler.graph.space import Group
from stack.compiler.graph.views import VIEWS

MANY = 1 << 15
"""The weights from which on it is worth a kernel more to lay them out as products read them."""

ROWS = 256
"""Fewer rows are a block or two, which read the weights as often as laying them out would."""

FAR = 5
"""Weights that are so many elements apart are gathered, and each is of another line of the cache
where all are many."""

COPIED = 64
"""Multiply-adds in the time in which an element of the result is read and written once more."""


def fold_sums(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The outputs with sums of products that nothing else reads as products."""
    order = list(toposort(outputs))
    if all(n.op != "matmul" for n in order):
        return outputs
    users = Counter(s for n in order for s in n.srcs)
    users.update(outputs)
    found: dict[Node, Node] = {}
    inside: set[Node] = set()
    for n in reversed(order):
        if n in inside or not n.type.size:
            continue
        folded = None
        if n.op == "reduce" and n["kind"] == "sum":
            folded = _over_batch(n, users)
        elif n.op in ("overlap_add", "slice"):
            folded = _over_windows(n, users)
        if folded is not None:
            found[n] = folded
            below = n
            while below.op != "matmul":
                (below,) = below.srcs
                inside.add(below)
    return _with(outputs, order, found) if found else outputs


def _with(
    outputs: tuple[Node, ...], order: Sequence[Node], found: Mapping[Node, Node]
) -> tuple[Node, ...]:
    """The outputs with what was found in its place; in a network the operands of one product are
    made of others that were found."""
    done: dict[Node, Node] = {}
    for n in order:
        new = found.get(n, n)
        for x in toposort((new,), lambda x: () if x in done else x.srcs):
            if x not in done:
                done[x] = rebuild(x, tuple(done[s] for s in x.srcs))
        done[n] = done[new]
    return tuple(done[o] for o in outputs)


def _over_batch(n: Node, users: Counter[Node]) -> Node | None:
    """A sum over batch axes, which join the depth."""
    (x,), axes = n.srcs, n["axes"]
    rank = len(n.shape)
    if x.op != "matmul" or users[x] > 1 or not axes or max(axes) >= rank - 2:
        return None
    if x.dtype.is_narrow:  # each product is rounded before they are added up
        return None
    a, b = x.srcs
    kept = [i for i in range(rank - 2) if i not in axes]
    batch, depth = [x.shape[i] for i in kept], prod(x.shape[i] for i in axes) * a.shape[-1]
    left = build.permute(a, (*kept, rank - 2, *axes, rank - 1))
    right = build.permute(b, (*kept, *axes, rank - 2, rank - 1))
    product = build.matmul(
        build.reshape(left, (*batch, a.shape[-2], depth)),
        build.reshape(right, (*batch, depth, b.shape[-1])),
        n.dtype,
    )
    return build.reshape(product, n.shape)


@dataclass(frozen=True, slots=True)
class _Overlap:
    """Windows that are added up: the axes of their numbers and of their elements, and how they
    lie. Wanted of the sum is what is from `start` to `stop`."""

    number: Axis
    element: Axis
    stride: int
    dilation: int
    start: int
    stop: int


def _over_windows(n: Node, users: Counter[Node]) -> Node | None:
    """Windows of a product that are added up, where one operand has their numbers and the other
    their elements: then the windows are those of the first one, and elements join the depth."""
    top = n.srcs[0] if n.op == "slice" else n
    if top.op != "overlap_add" or (top is not n and users[top] > 1):
        return None
    chain = [top]
    while chain[-1].srcs[0].op == "overlap_add" and users[chain[-1].srcs[0]] == 1:
        chain.append(chain[-1].srcs[0])
    view = chain[-1].srcs[0]
    dims = [Axis(size) for size in view.shape]
    overlaps, order = [], list(dims)
    for c in reversed(chain):
        at = c["axis"]
        overlaps.append((order[at], order[at + 1], c))
        del order[at + 1]
    wanted = _wanted(n, [order.index(number) for number, _, _ in overlaps])
    if wanted is None:
        return None
    if all(element.size == 1 < c["stride"] for _, element, c in overlaps):
        return None  # what lies apart is only moved: there is no sum, and zeros would be multiplied
    product, index = view, axis_index(dims)
    while product.op in ("reshape", "permute") and users[product] == 1:
        moved = _below(product, index)
        if moved is None:
            return None
        product, index = product.srcs[0], moved
    if product.op != "matmul" or users[product] > 1:
        return None
    parts = _parts(product, index, dims)
    if parts is None:
        return None
    each = [
        _Overlap(number, element, c["stride"], c["dilation"], *wanted[order.index(number)])
        for number, element, c in overlaps
    ]
    return _folded(n, product, parts, each, order)


def _wanted(n: Node, along: Sequence[int]) -> list[tuple[int, int]] | None:
    """The part of each axis of an overlapped sum that is kept, where only axes along which windows
    lie are cut."""
    if n.op != "slice":
        return [(0, size) for size in n.shape]
    sizes = n.srcs[0].shape
    cut = [i for i, size in enumerate(sizes) if n.shape[i] != size]
    if any(step != 1 for step in n["step"]) or not set(cut) <= set(along):
        return None
    return list(zip(n["start"], n["stop"], strict=True))


def _below(n: Node, index: Index) -> Index | None:
    """The element of a view's source."""
    wanted: list[object] = []

    def strict(index: Index, shape: Sequence[int]) -> Index:
        found = regroup(index, shape)
        if not isinstance(found, Index):
            wanted.append(found)
            return axis_index([Axis(size) for size in shape])
        return found

    moved, _ = VIEWS[n.op](n, index, strict)
    return None if wanted else moved


def _parts(product: Node, index: Index, dims: Sequence[Axis]) -> tuple[Group, Group, Group] | None:
    """The axes that make up a product's batch, rows and columns, each in order."""
    *batch, m, n = product.shape
    found = regroup(index, (prod(batch), m, n))
    if not isinstance(found, Index):
        return None
    parts = []
    for size, at in zip(found.shape, found.at, strict=True):
        axes = sorted((a for a, _ in at.terms if a.size > 1), key=lambda a: -at.coefficient(a))
        below = [prod(a.size for a in axes[i + 1 :]) for i in range(len(axes))]
        steps = [at.coefficient(a) for a in axes]
        if at.const or steps != below or prod(a.size for a in axes) != size:
            return None
        parts.append(tuple(axes))
    used = [a for part in parts for a in part]
    missing = tuple(a for a in dims if a.size > 1 and a not in used)
    return None if missing or len(set(used)) < len(used) else (parts[0], parts[1], parts[2])


def _folded(
    n: Node,
    product: Node,
    parts: tuple[Group, Group, Group],
    overlaps: Sequence[_Overlap],
    order: Sequence[Axis],
) -> Node | None:
    """The sum `n` of a product with these batch, rows and columns as a product whose result has the
    axes `order`; as one for each phase of strides where many zeros would be multiplied else."""
    batch, rows, columns = parts
    numbers = {o.number for o in overlaps if o.number.size > 1}
    elements = {o.element for o in overlaps if o.element.size > 1}
    if numbers <= set(rows) and elements <= set(columns):
        swapped, windowed, other = False, rows, columns
    elif numbers <= set(columns) and elements <= set(rows):
        swapped, windowed, other = True, columns, rows
    else:
        return None
    left, right = product.srcs
    depth = Axis(left.shape[-1])
    if swapped:
        left, right = build.transpose(right), build.transpose(left)
    seen = _Named.of(left, [*batch, *windowed, depth])
    weights = _Named.of(right, [*batch, depth, *other])
    for o in overlaps:
        if o.number not in seen.axes:  # a single window
            seen.insert(o.number, len(batch))
        if o.element not in weights.axes:
            weights.insert(o.element, len(weights.axes))
    near = hint(_lie(seen)[1].get(depth, FAR)) < FAR
    operands = _Operands(seen, weights, batch, depth, swapped, *_lie(weights), near)
    strided = [o for o in overlaps if o.stride > 1]
    if not operands.is_better_by_phases(strided):
        made, present = operands.windowed(overlaps, order, n.dtype)
    else:
        made, present = operands.by_phases(overlaps, strided, order, n.dtype)
    for o in strided:
        made = build.slice_axis(made, present.index(o.number), 0, o.stop - o.start)
    return build.reshape(made, n.shape)


def _lie(weights: _Named) -> tuple[set[Axis], dict[Axis, int]]:
    """The axes along which a value is the same, and how far apart its elements are along others in
    the one that it is a view of."""
    n, index = weights.value, axis_index(weights.axes)
    while n.op in ("reshape", "permute", "expand"):
        moved = _below(n, index)
        if moved is None:
            break
        n, index = n.srcs[0], moved
    steps = dict(index.flat().terms)
    return set(weights.axes) - set(steps), steps


@dataclass(frozen=True, slots=True)
class _Operands:
    """A product of what is seen through windows, once these are added up, and of weights, and how
    both lie."""

    seen: _Named
    weights: _Named
    batch: Group
    depth: Axis
    swapped: bool
    """Whether the weights are on the left."""
    repeated: set[Axis]
    """The axes along which the weights are the same."""
    steps: Mapping[Axis, int]
    """How far apart they lie along others."""
    innermost: bool
    """Whether what is seen lies along the depth, which is then innermost of its own and of taps:
    else taps are, so that what is packed at once looks at the same elements again and again."""

    @property
    def count(self) -> int:
        """How many weights there are."""
        return prod(n for a, n in self.weights.sizes.items() if a not in self.repeated)

    def is_better_by_phases(self, strided: Sequence[_Overlap]) -> bool:
        """Whether to make a product of each phase, and to bring the results in order, is better
        than a single one of all: that would multiply many zeros, or sums would become many small
        products."""
        if not strided or any(o.dilation > 1 or o.stride > o.element.size for o in strided):
            return False
        # Windows, each by one column of weights, are sums; phases as columns would make a small
        # product of each.
        columns = prod(n for a, n in self.weights.sizes.items() if a not in self.batch)
        if columns == prod(o.element.size for o in strided):
            return True
        if not is_fixed(self.count) or self.count < MANY:
            return False
        shifts = [(-o.start % o.stride, o) for o in strided]
        taps = prod(-(-(shift + o.element.size) // o.stride) for shift, o in shifts)
        saved = taps - prod(o.element.size for o in strided) / prod(o.stride for o in strided)
        return self.depth.size * saved >= COPIED

    def by_phases(
        self,
        overlaps: Sequence[_Overlap],
        strided: Sequence[_Overlap],
        order: Sequence[Axis],
        dtype: DType,
    ) -> tuple[Node, list[Axis]]:
        """The same as `windowed`, as one product for each phase of the strides."""
        within = [a for a in self.weights.axes if a not in (*self.batch, self.depth)]
        taps = [o.element for o in strided]
        axes = [*self.batch, *taps, self.depth, *(a for a in within if a not in taps)]
        lying = self.laid_out(self.weights, *((a,) for a in axes[len(self.batch) :]))
        pieces = []
        for phases in every(*(range(o.stride) for o in strided)):
            own, each = _Named(lying, list(axes)), list(overlaps)
            for o, phase in zip(strided, phases, strict=True):
                # The phase has every stride-th element of the windows, from the first one on.
                first = (o.start + phase) % o.stride
                element = own.take(o.element, first, o.stride)
                start = (o.start + phase - first) // o.stride
                stop = start - (o.start - o.stop) // o.stride
                each[each.index(o)] = _Overlap(o.number, element, 1, 1, start, stop)
            part = replace(self, weights=own, steps={axes[-1]: 1})
            one, present = part.windowed(each, order, dtype)
            pieces.append(build.reshape(one, (1, *one.shape)))
        strides = {o.number: o.stride for o in strided}
        made = build.reshape(build.concat(pieces, 0), (*strides.values(), *one.shape))
        places, perm = list(strides), list[int]()
        for i, a in enumerate(present):  # a phase goes behind the number of its stride
            perm += [len(places) + i, *((places.index(a),) if a in strides else ())]
        made = build.permute(made, perm)
        sizes = zip(present, one.shape, strict=True)
        return build.reshape(made, [size * strides.get(a, 1) for a, size in sizes]), present

    def windowed(
        self, overlaps: Sequence[_Overlap], order: Sequence[Axis], dtype: DType
    ) -> tuple[Node, list[Axis]]:
        """The sum, with its axes in this order."""
        batch, seen, weights = self.batch, self.seen.copy(), self.weights.copy()
        taps, size = [self.depth], {**weights.sizes, **seen.sizes}
        phases: dict[Axis, Axis] = {}
        edges: dict[Axis, tuple[int, int]] = {}
        windows: list[tuple[Axis, Axis, int, int]] = []
        for o in overlaps:
            if o.stride > 1:
                weights.dilate(o.element, o.dilation)
        for o in overlaps:
            # Where the wanted part begins a window shall begin: those before have fewer elements.
            shift = -o.start % o.stride
            span = (o.element.size - 1) * o.dilation + 1 if o.stride > 1 else o.element.size
            tap = Axis(-(-(shift + span) // o.stride))
            weights.cut(o.element, 0, span)
            if o.stride > 1:
                # What windows give to element number * stride + phase of the sum is what they have
                # at tap * stride + phase: phases are further axes of the other operand.
                phase = phases[o.number] = Axis(o.stride)
                weights.pad({o.element: (shift, tap.size * o.stride - shift - span)})
                weights.split(o.element, tap, phase)
                size[phase] = o.stride
            else:
                weights.split(o.element, tap)
            weights.value = build.flip(weights.value, weights.axes.index(tap))
            first = (o.start + shift) // o.stride
            size[o.number] = -(-(o.stop - o.start) // o.stride)
            step = 1 if o.stride > 1 else o.dilation
            after = max(0, first + size[o.number] - o.number.size)
            edges[o.number] = (tap.size - 1) * step, after
            windows.append((o.number, tap, step, first))
            taps.insert(len(taps) - self.innermost, tap)
        seen.pad(edges)  # along all axes at once, so that an element is masked once
        for number, tap, step, first in windows:
            seen.window(number, tap, step)
            seen.cut(number, first, first + size[number])
        kept = [a for a in seen.axes if a not in (*batch, *taps)]
        others = [a for a in weights.axes if a not in (*batch, *taps)]
        first_operand = seen.joined(batch, kept, taps)
        second = weights.joined(batch, taps, others)
        again = prod(seen.sizes[a] for a in kept)  # rows, each tile of which reads the weights
        apart = bool(phases) or (hint(again) >= ROWS and self._are_apart(taps, others))
        if apart and hint(self.count) >= MANY:
            second = build.reshape(self.laid_out(weights, taps, others), second.shape)
        result = [*batch, *kept, *others]
        if self.swapped:
            first_operand, second = build.transpose(second), build.transpose(first_operand)
            result = [*batch, *others, *kept]
        made = build.matmul(first_operand, second, dtype)
        made = build.reshape(made, [size[a] for a in result])
        present = [a for a in order if a in result]
        split = [b for a in present for b in ((a, phases[a]) if a in phases else (a,))]
        made = build.permute(made, [result.index(a) for a in split])
        whole = [size[a] * (size[phases[a]] if a in phases else 1) for a in present]
        return build.reshape(made, whole), present

    def _are_apart(self, taps: Sequence[Axis], others: Sequence[Axis]) -> bool:
        """Whether neither depths nor columns next to each other lie near each other among the
        weights."""
        last = next((a for a in reversed(others) if a.size > 1), None)
        steps = (hint(self.steps.get(a, FAR)) for a in (self.depth, last) if a is not None)
        return len(taps) > 1 and min(steps) >= FAR

    def laid_out(self, weights: _Named, *groups: Sequence[Axis]) -> Node:
        """The weights as the batch and these groups of axes, from a buffer of their own, which has
        them once for the axes along which they are repeated."""
        each = once = weights.joined(*[(a,) for a in self.batch], *groups)
        for i, a in enumerate(self.batch):
            if a in self.repeated:
                once = build.slice_axis(once, i, 0, 1)
        return build.expand(build.contiguous(once), each.shape)


@dataclass(slots=True)
class _Named:
    """A value whose axes have names."""

    value: Node
    axes: list[Axis]

    @staticmethod
    def of(value: Node, axes: list[Axis]) -> _Named:
        return _Named(build.reshape(value, [a.size for a in axes]), axes)

    @property
    def sizes(self) -> dict[Axis, int]:
        """The size along each axis."""
        return dict(zip(self.axes, self.value.shape, strict=True))

    def copy(self) -> _Named:
        """The same, to be changed."""
        return _Named(self.value, list(self.axes))

    def take(self, axis: Axis, first: int, step: int) -> Axis:
        """Every `step`-th element of an axis, which are another one."""
        at = self.axes.index(axis)
        self.value = build.slice_axis(self.value, at, first, self.value.shape[at], step)
        self.axes[at] = Axis(self.value.shape[at])
        return self.axes[at]

    def insert(self, axis: Axis, at: int) -> None:
        """One more axis, of one element."""
        self.value = build.reshape(self.value, (*self.value.shape[:at], 1, *self.value.shape[at:]))
        self.axes.insert(at, axis)

    def pad(self, edges: Mapping[Axis, tuple[int, int]]) -> None:
        """Zeros before and after axes."""
        lo, hi = zip(*(edges.get(a, (0, 0)) for a in self.axes), strict=True)
        self.value = build.pad(self.value, lo, hi)

    def cut(self, axis: Axis, start: int, stop: int) -> None:
        """A part of an axis."""
        self.value = build.slice_axis(self.value, self.axes.index(axis), start, stop)

    def window(self, axis: Axis, element: Axis, dilation: int) -> None:
        """Windows along an axis, with their elements as the next one."""
        at = self.axes.index(axis)
        self.value = build.window(self.value, at, element.size, 1, dilation)
        self.axes.insert(at + 1, element)

    def split(self, axis: Axis, *by: Axis) -> None:
        """Other axes for one."""
        at, shape = self.axes.index(axis), self.value.shape
        self.value = build.reshape(
            self.value, (*shape[:at], *(a.size for a in by), *shape[at + 1 :])
        )
        self.axes[at : at + 1] = by

    def dilate(self, axis: Axis, step: int) -> None:
        """Zeros after each element of an axis, step - 1 of them."""
        at, shape = self.axes.index(axis), self.value.shape
        apart = build.reshape(self.value, (*shape[: at + 1], 1, *shape[at + 1 :]))
        zeros = [step - 1 if i == at + 1 else 0 for i in range(len(shape) + 1)]
        apart = build.pad(apart, [0] * len(zeros), zeros)
        self.value = build.reshape(apart, (*shape[:at], shape[at] * step, *shape[at + 1 :]))

    def joined(self, *groups: Sequence[Axis]) -> Node:
        """The value with the axes of each group as one."""
        shape = self.sizes
        order = [self.axes.index(a) for group in groups for a in group]
        sizes = [prod(shape[a] for a in group) for group in groups]
        return build.reshape(build.permute(self.value, order), sizes)
