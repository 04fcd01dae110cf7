"""The devices of one kind as a tree of domains, and where in it a gang fits best.

A leaf is a chip; a set of its devices is the bits of an integer. For each number of devices that a
rank takes, every domain knows how many such ranks it has room for, and every level keeps its
domains sorted by that, so that the best domain of a hundred thousand is found by bisection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedList

from stack.scheduler.spec import CHIP, HOST, HostSpec, JobSpec


def lowest(mask: int, count: int) -> int:
    """The `count` lowest set bits of a mask that has at least as many."""
    if mask.bit_count() == count:
        return mask
    rest = mask
    for _ in range(count):
        rest &= rest - 1
    return mask ^ rest


class Domain:
    """A node of the tree. `room[i]` counts the ranks of `DeviceTree.sizes[i]` devices that fit
    below it; `free` (of a leaf) are its devices that nobody holds, `whole` all that it has. A leaf
    that is not `usable` (its host is lost or drained) gives nothing out."""

    __slots__ = (
        *("children", "free", "host", "kind", "level", "name", "ordinal", "parent"),
        *("room", "usable", "whole"),
    )

    def __init__(self, name: str, level: int, parent: Domain | None, ordinal: int) -> None:
        self.name = name
        self.level = level
        self.parent = parent
        self.ordinal = ordinal
        self.children: list[Domain] = []
        self.room: list[int] = []
        self.free = 0
        self.whole = 0
        self.usable = True
        self.host = self.kind = ""


Fit = list[tuple[Domain, int]]
"""Leaves with the number of ranks on each."""


class DeviceTree:
    """All devices of one kind. `levels` are the names of the levels under the root, outermost
    first; the last two are the host and the chip."""

    def __init__(self, kind: str, levels: Sequence[str]) -> None:
        self.kind = kind
        self.levels = (*levels, HOST, CHIP)
        self.root = Domain(kind, 0, None, 0)
        self.sizes: list[int] = [1]
        self.total = 0
        self.closed = 0
        self.leaves: dict[tuple[str, str], Domain] = {}
        self._capacities: dict[tuple[int, int], int] = {}
        self._domains: dict[tuple[str, ...], Domain] = {(): self.root}
        self._by_level: list[list[Domain]] = [[self.root], *([] for _ in self.levels)]
        self.root.room = [0]
        self._single = True
        self._sorted: list[list[SortedList[tuple[int, int]]]] = [
            [SortedList((0, domain.ordinal) for domain in domains)] for domains in self._by_level
        ]
        self._sorted[-1] = self._sorted[-2]  # while each host has one chip, both are one order

    def add(self, host: HostSpec) -> list[Domain]:
        """Take in a host's chips of this kind; returns the new leaves, all their devices free."""
        chips = [chip for chip in host.chips if chip.kind == self.kind]
        if not chips:
            return []
        path: tuple[str, ...] = ()
        parent = self.root
        inner = (*host.domains, host.name)
        for depth, name in enumerate(inner, start=1):
            path = (*path, name)
            found = self._domains.get(path)
            if found is None:
                found = self._domains[path] = self._domain(name, depth, parent)
            parent = found
        if len(chips) > 1 and self._single:  # sort chips apart from their hosts from now on
            self._single = False
            self._sorted[-1] = [
                SortedList((leaf.room[index], leaf.ordinal) for leaf in self._by_level[-1])
                for index in range(len(self.sizes))
            ]
        leaves = []
        for chip in chips:
            leaf = self._domain(chip.name, len(inner) + 1, parent)
            self._domains[*path, chip.name] = leaf
            leaf.kind, leaf.host = self.kind, host.name
            leaf.whole = (1 << chip.devices) - 1
            self.leaves[host.name, chip.name] = leaf
            self.total += chip.devices
            self.put(leaf, leaf.whole)
            leaves.append(leaf)
        self._capacities.clear()
        return leaves

    def capacity(self, spec: JobSpec) -> int:
        """The most ranks of a job that all devices hold, were they all free and well."""
        level = self._level(spec) if spec.required else 0
        known = self._capacities.get((level, spec.devices))
        if known is None:
            ranks: dict[Domain, int] = {}
            for leaf in self.leaves.values():
                domain = self.domain_of(leaf, spec)
                ranks[domain] = ranks.get(domain, 0) + leaf.whole.bit_count() // spec.devices
            known = self._capacities[level, spec.devices] = max(ranks.values(), default=0)
        return known

    def size(self, devices: int) -> int:
        """The index in `Domain.room` of ranks of so many devices."""
        if devices in self.sizes:
            return self.sizes.index(devices)
        self.sizes.append(devices)
        for level, domains in enumerate(self._by_level):
            for domain in domains:
                domain.room.append(0)
            if level < len(self.levels) or not self._single:
                self._sorted[level].append(SortedList((0, domain.ordinal) for domain in domains))
        index = len(self.sizes) - 1
        for leaf in self.leaves.values():
            self._more(leaf, index, leaf.free.bit_count() // devices)
        return index

    def put(self, leaf: Domain, mask: int) -> None:
        """Devices of a leaf are free again (if it is usable)."""
        if leaf.usable:
            leaf.free |= mask
        self._counted(leaf)

    def take(self, leaf: Domain, mask: int) -> None:
        """Free devices of a leaf are held by somebody from now on."""
        leaf.free &= ~mask
        self._counted(leaf)

    def _counted(self, leaf: Domain) -> None:
        free = leaf.free.bit_count()
        for index, devices in enumerate(self.sizes):
            change = free // devices - leaf.room[index]
            if change:
                self._more(leaf, index, change)

    def _more(self, leaf: Domain, index: int, change: int) -> None:
        domain: Domain | None = leaf
        while domain is not None:
            room = domain.room[index]
            domain.room[index] = room + change
            # one that is alone in its level has no other to be sorted among, nor an only chip
            if len(self._by_level[domain.level]) > 1 and (domain.children or not self._single):
                order = self._sorted[domain.level][index]
                order.remove((room, domain.ordinal))
                order.add((room + change, domain.ordinal))
            domain = domain.parent

    def _domain(self, name: str, level: int, parent: Domain) -> Domain:
        domain = Domain(name, level, parent, len(self._by_level[level]))
        domain.room = [0] * len(self.sizes)
        parent.children.append(domain)
        same = self._by_level[level]
        same.append(domain)
        if level < len(self.levels) or not self._single:
            for index, order in enumerate(self._sorted[level]):
                if len(same) == 2:  # the first one was alone until now
                    order.clear()
                    order.add((same[0].room[index], 0))
                order.add((0, domain.ordinal))
        return domain

    def most(self, spec: JobSpec, index: int) -> int:
        """The most ranks of this job for which there is room now."""
        if not spec.required:
            return self.root.room[index]
        level = self._level(spec)
        if len(self._by_level[level]) == 1:
            return self._by_level[level][0].room[index]
        order = self._sorted[level][index]
        return order[-1][0] if order else 0

    def _level(self, spec: JobSpec) -> int:
        return self.levels.index(spec.within) + 1

    def fit(self, spec: JobSpec, index: int, ranks: int, inside: Domain | None = None) -> Fit:
        """Leaves for so many ranks, for which there is room (see `most`): in the smallest domain
        that holds them all and is fullest, at or above the level that the job prefers. `inside`
        narrows the choice to one domain."""
        if inside is None:
            inside = self._smallest(spec, index, ranks)
        chosen: Fit = []
        if spec.balanced:
            self._spread(inside, index, ranks, chosen)
        else:
            self._fill(inside, index, ranks, chosen)
        return chosen

    def domain(self, path: Sequence[str]) -> Domain:
        """The domain of these names, from the outermost level down; () is the root."""
        return self._domains[tuple(path)]

    def domain_of(self, leaf: Domain, spec: JobSpec) -> Domain:
        """The domain that must hold all ranks of a job which has one on this leaf."""
        if not spec.required:
            return self.root
        level = self._level(spec)
        domain = leaf
        while domain.level > level and domain.parent is not None:
            domain = domain.parent
        return domain

    def _smallest(self, spec: JobSpec, index: int, ranks: int) -> Domain:
        innermost = self._level(spec) if spec.within else len(self.levels)
        for level in range(innermost, 0, -1):
            same = self._by_level[level]
            if len(same) == 1:
                if same[0].room[index] >= ranks:
                    return same[0]
                continue
            order = self._sorted[level][index]
            at = order.bisect_left((ranks, 0))
            if at < len(order):
                ordinal: int = order[at][1]
                return same[ordinal]
        return self.root

    def _fill(self, domain: Domain, index: int, ranks: int, chosen: Fit) -> None:
        """The fullest child that holds all; else the emptiest children whole, and so on."""
        if not domain.children:
            chosen.append((domain, ranks))
            return
        for child, count in self._parts(domain, index, ranks):
            self._fill(child, index, count, chosen)

    def _parts(self, domain: Domain, index: int, ranks: int) -> Iterator[tuple[Domain, int]]:
        level = domain.level + 1
        if 1 < len(domain.children) == len(self._by_level[level]):
            order = self._sorted[level][index]
            every = self._by_level[level]
            tail = len(order)
            while ranks:
                at = order.bisect_left((ranks, 0))
                if at < tail:
                    yield every[order[at][1]], ranks
                    return
                tail -= 1
                room, ordinal = order[tail]
                yield every[ordinal], room
                ranks -= room
            return
        rooms = sorted((child.room[index], child.ordinal, child) for child in domain.children)
        while ranks:
            enough = next((entry for entry in rooms if entry[0] >= ranks), None)
            if enough is not None:
                yield enough[2], ranks
                return
            room, _, child = rooms.pop()
            yield child, room
            ranks -= room

    def _spread(self, domain: Domain, index: int, ranks: int, chosen: Fit) -> None:
        """Equal parts for the fewest children that hold them."""
        if not domain.children:
            chosen.append((domain, ranks))
            return
        count = sum(1 for _ in self._parts(domain, index, ranks))
        emptiest = sorted(domain.children, key=lambda child: (-child.room[index], child.ordinal))
        while True:
            share, over = divmod(ranks, count)
            parts = [share + (place < over) for place in range(count)]
            if all(child.room[index] >= part for child, part in zip(emptiest, parts, strict=False)):
                break
            count += 1
            if count > len(emptiest) or count > ranks:
                self._fill(domain, index, ranks, chosen)
                return
        for child, part in zip(emptiest, parts, strict=False):
            self._spread(child, index, part, chosen)
