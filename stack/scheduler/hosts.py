"""Hosts come, go, and are emptied."""

from __future__ import annotations

from stack.scheduler.books import Books
from stack.scheduler.events import Stop
from stack.scheduler.gang import Blocker, Gang, State
from stack.scheduler.moves import break_promise, resize
from stack.scheduler.order import Use
from stack.scheduler.running import RunningJobs
from stack.scheduler.spec import HostSpec, SpecError
from stack.scheduler.topology import DeviceTree, Domain


def host_joined(books: Books, host: HostSpec) -> None:
    known = books.hosts.get(host.name)
    if known is not None:
        if known[0] != host:
            raise SpecError(
                f"host {host.name!r} was here with other chips or in another domain; "
                "let it join under another name"
            )
        for leaf in known[1]:
            if not leaf.usable:
                leaf.usable = True
                _count(books, leaf, 1)
                books.trees[leaf.kind].closed -= 1
                held = 0
                for gang in books.occupants[leaf]:
                    held |= gang.holding[leaf]
                books.trees[leaf.kind].put(leaf, leaf.whole & ~held)
    else:
        if len(host.domains) != len(books.levels):
            raise SpecError(
                f"host {host.name!r} names {len(host.domains)} domains, the cluster has the "
                f"levels: {', '.join(books.levels) or 'none'}"
            )
        leaves = []
        for kind in dict.fromkeys(chip.kind for chip in host.chips):
            if kind not in books.trees:
                books.trees[kind] = DeviceTree(kind, books.levels)
                books.pools[kind] = Blocker(f"devices of kind {kind}", kind)
                books.running[kind] = RunningJobs(books.rules.preempt, bool(books.fifo))
            leaves += books.trees[kind].add(host)
        for leaf in leaves:
            books.occupants[leaf] = {}
            _count(books, leaf, 1)
        books.hosts[host.name] = (host, leaves)
    for leaf in books.hosts[host.name][1]:
        capacity = {kind: tree.total for kind, tree in books.trees.items()}
        books.use = Use(capacity, books.users, books.rules.head_start_s)
        books.changed(leaf.kind)
        books.wake(books.pools[leaf.kind])


def _count(books: Books, leaf: Domain, sign: int) -> None:
    if books.fifo is not None:
        books.fifo.counted(leaf.kind, sign * leaf.whole.bit_count())


def host_drained(books: Books, host: str) -> None:
    for leaf in books.leaves(host):
        books.trees[leaf.kind].closed += leaf.usable
        if leaf.usable:
            _count(books, leaf, -1)
        leaf.usable = False
        books.trees[leaf.kind].take(leaf, leaf.free)
        books.changed(leaf.kind)
        struck = [g for g in books.promised if leaf in g.owed or leaf in g.holding]
        for gang in struck:
            break_promise(books, gang)
            books.wait(gang)


def host_lost(books: Books, host: str) -> None:
    host_drained(books, host)
    struck: dict[Gang, None] = {}
    for leaf in books.leaves(host):
        struck.update(books.occupants[leaf])
    for gang in sorted(struck, key=lambda g: g.seq):
        if gang.state is State.PROMISED:
            break_promise(books, gang)
            books.wait(gang)
            continue
        books.unbook(gang)
        books.wake_quota(gang.queue.cohort)
        lost = 0
        for leaf in books.leaves(host):
            mask = gang.holding.pop(leaf, 0)
            mask &= ~gang.leaving.pop(leaf, 0)
            books.occupants[leaf].pop(gang, None)
            lost += mask.bit_count() // gang.spec.devices
        if gang.state is State.RUNNING and lost:
            _mend(books, gang, lost, host)
        books.book(gang)


def _mend(books: Books, gang: Gang, lost: int, host: str) -> None:
    """Replace the ranks that a job lost with a host, inside the domain that holds it and
    without moving the rest; else go on with fewer, if it can; else start anew when there is
    room."""
    spec = gang.spec
    replaced = 0
    # one that goes over to another kind leaves the rest
    anchor = next((leaf for leaf in gang.holding if leaf.kind in spec.kinds), None)
    if anchor is not None:
        tree = books.trees[anchor.kind]
        index = tree.size(spec.devices)
        inside = tree.domain_of(anchor, spec)
        has = books.has(gang).get(tree.kind, 0)
        room = gang.queue.room(tree.kind) - has
        replaced = min(lost, inside.room[index], room // spec.devices)
        if replaced > 0:
            books.take(gang, tree, tree.fit(spec, index, replaced, inside))
    left = gang.ranks - lost + max(replaced, 0)
    gang.now_has(left, books.now)
    if anchor is not None and left >= spec.fewest:
        how = f"{replaced} of {lost} ranks are replaced, it goes on with {left}"
        resize(books, gang, f"host {host} is lost: {how}")
        return
    gang.state, gang.requeue, gang.told = State.STOPPING, True, True
    gang.why = f"host {host} is lost, and no free devices can replace it"
    books.out.append(Stop(gang.job, gang.why))
