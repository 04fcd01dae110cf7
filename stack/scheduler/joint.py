"""Jobs with options: which one each has, chosen for all of them together, and chosen anew whenever
something happens.

They share the devices that are free and those that they have, less what a job without options that
comes before them needs and can get by their having less. One that waits is placed by its option and
then starts like any other, by the same rules; one that runs goes over to another option once the
devices are there, and nobody else waits for them. Where each waits for what another one has, one is
stopped, and starts anew by its option when the others have gone over. None is left without devices
for the sake of the sum."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from stack.scheduler.books import Books
from stack.scheduler.choice import Alternative, Open, choose
from stack.scheduler.gang import Gang, Holding, Queue, State
from stack.scheduler.moves import ask, resize, shrink
from stack.scheduler.spec import Option
from stack.scheduler.starting import start_waiting, turn_of


def start_and_choose(books: Books) -> None:
    """Start jobs that wait, those with options by what is chosen for them; then have those that run
    go over to other options."""
    waiting = -1
    while (left := sum(gang.state is State.WAITING for gang in books.open)) != waiting:
        waiting = left
        # Place those that wait by what is chosen; by their fewest devices where nothing is, and
        # where their patience is over, since by any other option they could be held up for ever.
        for one in [one for one in books.open if one.state is State.WAITING]:
            if not books.key(one)[0]:
                _place_by(books, one, fewest(books, one), chosen=True)
        for one, choice in list(_chosen(books)):
            if one.state is State.WAITING:
                _place_by(books, one, choice or fewest(books, one), chosen=choice is not None)
                if choice is not None and _fits(books, one, choice):  # whoever has reserved it
                    books.woken[books.bucket(one)] = None
        start_waiting(books)
    if books.rules.elastic:
        chosen = dict(_chosen(books))
        stuck = []
        for gang, option in chosen.items():
            if gang.state is not State.RUNNING or gang.leaving or option == gang.option:
                continue
            if option is None or _was_left(books, gang, option):
                continue
            if not _go_over(books, gang, option, chosen):
                stuck.append(gang)
        if stuck:
            _part(books, stuck, chosen)


def fewest(books: Books, gang: Gang) -> Option:
    """The option that needs the fewest devices, of those that can ever be had."""
    assert gang.option is not None, "it has options"
    possible = [option for option in gang.spec.options if _is_possible(books, gang, option)]
    return min(possible, key=lambda option: option.ranks, default=gang.option)


def speeds(gang: Gang) -> list[float]:
    """How fast a job is by each of its options: as measured; else as was said before, in the ratio
    by which options of this kind were faster; as was said, where none was measured."""
    ratios: dict[str, list[float]] = {}
    for place, speed in gang.speeds.items():
        option = gang.spec.options[place]
        ratios.setdefault(option.kind, []).append(speed / option.speed)
    means = {kind: sum(found) / len(found) for kind, found in ratios.items()}
    return [
        gang.speeds.get(place, option.speed * means.get(option.kind, 1.0))
        for place, option in enumerate(gang.spec.options)
    ]


def _is_possible(books: Books, gang: Gang, option: Option) -> bool:
    """Whether an option could be had, were all devices free."""
    tree = books.trees.get(option.kind)
    if tree is None or gang.queue.most(option.kind) < option.ranks * gang.spec.devices:
        return False
    return tree.capacity(gang.spec) >= option.ranks


def _place_by(books: Books, gang: Gang, option: Option, *, chosen: bool) -> None:
    if (gang.option, gang.chosen) != (option, chosen):
        books.unwait(gang)
        gang.becomes(option, books.now)
        gang.chosen = chosen
        books.rank(gang)
        books.wait(gang)


def _chosen(books: Books) -> Iterator[tuple[Gang, Option | None]]:
    """The jobs whose options may be chosen now, each with what is best; None for one that waits and
    shall wait on."""
    waiting = [gang for gang in books.open if gang.state is State.WAITING]
    keys = {gang: books.key(gang) for gang in waiting}
    waiting = [g for g in waiting if keys[g][0] and not turn_of(books, g, keys[g])]
    waiting = sorted(waiting, key=keys.__getitem__)[: books.rules.depth]
    running = [g for g in books.open if g.state is State.RUNNING]
    between = [g for g in books.open if g.state is State.STOPPING and g.swapped and g.requeue]
    if not waiting and not running:
        return
    ways = {gang: _ways(books, gang) for gang in (*running, *between, *waiting)}
    opens = [_open(books, gang, ways[gang]) for gang in ways]
    free, bounds = _room(books, running, ways)
    given = opens, free, bounds
    if books.choices is None or books.choices[0] != given:
        books.choices = given, choose(opens, free, bounds)
    found = books.choices[1]
    for gang, options in ways.items():
        alternative = found.get(gang.job)
        yield gang, None if alternative is None else options[alternative]


def _ways(books: Books, gang: Gang) -> dict[Alternative, Option]:
    """What a job may have, with its part of the speed that its best option has. One that goes over
    to an option keeps to it until it is there. One that waits for a place in one domain, or for
    several devices a rank, is offered what fits now, if anything does: counts do not tell."""
    told = speeds(gang)
    best = max(told)
    ways = {
        Alternative(o.kind, o.ranks * gang.spec.devices, o.strategy, speed / best): o
        for o, speed in zip(gang.spec.options, told, strict=True)
        if o == gang.option or (not gang.leaving and _is_possible(books, gang, o))
    }
    if gang.state is State.WAITING and (gang.spec.required or gang.spec.devices > 1):
        ways = {way: o for way, o in ways.items() if _fits(books, gang, o)} or ways
    return ways


def _fits(books: Books, gang: Gang, option: Option) -> bool:
    tree = books.trees[option.kind]
    return tree.most(gang.spec, tree.size(gang.spec.devices)) >= option.ranks


def _open(books: Books, gang: Gang, ways: dict[Alternative, Option]) -> Open:
    bounds = _bounds(gang.queue) if gang.queue.spec.quota else ()
    has, moving = None, 0.0
    if gang.state is State.RUNNING:
        has = next(way for way, option in ways.items() if option == gang.option)
        lasts_s = min(books.rules.horizon_s, gang.ends_at - books.now)
        moving = has.goodput * gang.spec.move_s / lasts_s if lasts_s > 0 else 1.0
    return Open(gang.job, tuple(ways), gang.spec.weight, has, moving, bounds, gang.swapped)


def _room(
    books: Books, running: Collection[Gang], mine: Collection[Gang]
) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Devices of each kind, and quota, that are free, or that those of them have that run, also
    those that they are about to leave: a choice holds until all that follows from it is done."""
    free = {kind: tree.root.room[0] for kind, tree in books.trees.items()}
    bounds: dict[tuple[str, str], int] = {}
    for queue in {gang.queue: None for gang in mine if gang.queue.spec.quota}:
        own, shared = _bounds(queue)
        for kind in books.trees:
            bounds[own, kind], bounds[shared, kind] = queue.room_own(kind), queue.room_shared(kind)
    for gang in mine:
        if gang.state is State.STOPPING:
            for leaf, mask in gang.holding.items():
                free[leaf.kind] += mask.bit_count() if leaf.usable else 0
    for gang in running:
        (kind,) = gang.spec.kinds
        free[kind] += gang.need
        for leaf, mask in gang.leaving.items():
            free[leaf.kind] += mask.bit_count() if leaf.usable else 0
        for bound in _bounds(gang.queue):
            if (bound, kind) in bounds:
                bounds[bound, kind] += gang.need
    for kind, held in books.reserved.items():
        if held.gang not in mine and books.rules.elastic:
            free[kind] -= _kept(books, held.gang, kind, free[kind], running)
    return free, bounds


def _bounds(queue: Queue) -> tuple[str, str]:
    return f"own {queue.spec.name}", queue.cohort.name


def _kept(books: Books, heir: Gang, kind: str, there: int, running: Collection[Gang]) -> int:
    """Devices that a job which has reserved some is to get of these: what it needs beyond those
    that others are about to leave, if the jobs that run can do without so many."""
    coming = 0
    for _, _, other in books.running[kind].by_end:
        if other.state is State.STOPPING and not other.swapped:
            coming += books.has(other).get(kind, 0)
        elif other.option is None:
            coming += sum(m.bit_count() for leaf, m in other.leaving.items() if leaf.kind == kind)
    need = max(heir.need - coming, 0)
    bound = 0
    for gang in running:
        if gang.spec.kinds == (kind,):
            least = min(option.ranks for option in gang.spec.options if option.kind == kind)
            gives = gang.spec.priority <= heir.spec.priority
            bound += least * gang.spec.devices if gives else gang.need
    return need if there - bound >= need else 0


def _part(books: Books, stuck: Collection[Gang], chosen: dict[Gang, Option | None]) -> None:
    """Stop the one that does least of those that cannot go over, if nothing else is about to change
    and counts alone hold them up: they wait for each other."""
    quiet = not any(gang.leaving or gang.state is State.STOPPING for gang in books.open)
    plain = all(gang.spec.devices == 1 and not gang.spec.required for gang in chosen)
    kinds = {option.kind for gang in stuck if (option := chosen[gang]) is not None}
    # one whose patience is over starts by its fewest again, and one that came back stays
    patient = [
        g for g in stuck if books.key(g)[0] and g.option and not _was_left(books, g, g.option)
    ]
    if len(stuck) < 2 or not patient:
        return
    if quiet and plain and not any(_others(books, gang, kinds) - {*chosen} for gang in stuck):
        least = min(patient, key=lambda gang: (gang.spec.weight * _goodput(gang), gang.seq))
        _leave(books, least)
        least.swapped = True
        ask(books, least, "it goes over to another option", requeue=True)


def _goodput(gang: Gang) -> float:
    assert gang.option is not None, "it has options"
    told = speeds(gang)
    return told[gang.spec.options.index(gang.option)] / max(told)


def _others(books: Books, gang: Gang, kinds: Collection[str]) -> set[Gang]:
    """Who waits for devices of these kinds, or has reserved quota of them."""
    others = {bucket.first for kind in kinds for bucket in books.pools[kind].buckets()}
    claims = gang.queue.cohort.claims
    return others | {claims[kind].gang for kind in kinds if kind in claims}


def _was_left(books: Books, gang: Gang, option: Option) -> bool:
    """Whether a job has left an option since the last news. Who may be chosen for hangs on the
    order, and that on what others have: it would go to and fro, and do nothing else."""
    return gang.went_at >= books.news_at and gang.spec.options.index(option) in gang.went


def _leave(books: Books, gang: Gang) -> None:
    """Keep in mind which option a job leaves."""
    assert gang.option is not None, "it has options"
    if gang.went_at < books.news_at:
        gang.went = []
    gang.went_at = books.now
    gang.went.append(gang.spec.options.index(gang.option))


def _go_over(books: Books, gang: Gang, option: Option, mine: Collection[Gang]) -> bool:
    """Have a running job go over to another option, if what it needs for that is free now and
    nobody waits for it but those who were chosen for with it; says whether it does."""
    tree, spec = books.trees[option.kind], gang.spec
    index = tree.size(spec.devices)
    same = option.kind in gang.spec.kinds
    more = option.ranks - (gang.ranks if same else 0)
    inside = tree.domain_of(next(iter(gang.holding)), spec) if same else None
    if more > 0:
        others = _others(books, gang, [option.kind])
        there = tree.most(spec, index) if inside is None else inside.room[index]
        room = gang.queue.room(option.kind)
        if not others <= set(mine) or min(there, room // spec.devices) < more:
            return False
    before: Holding = dict(gang.holding)
    books.unbook(gang)
    _leave(books, gang)
    if more > 0:
        books.take(gang, tree, tree.fit(spec, index, more, inside))
    if not same:
        gang.leaving = before
    elif more < 0:
        shrink(gang, -more)
    gang.becomes(option, books.now)
    gang.now_has(option.ranks, books.now)
    books.book(gang)
    how = f" and {option.strategy}" if option.strategy else ""
    name = f"{option.ranks} ranks of kind {option.kind!r}{how}"
    resize(books, gang, f"by {name} all jobs together are faster")
    return True
