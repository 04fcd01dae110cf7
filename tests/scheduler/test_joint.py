"""Jobs with options in the scheduler: placed by the best choice for all of them, and placed anew
where that pays."""

import math
import random

import pytest

from stack.scheduler.core import Scheduler
from stack.scheduler.events import (
    Admit,
    AskToStop,
    Ended,
    HostJoined,
    HostLost,
    Measured,
    Refuse,
    Resize,
    Resized,
    Saved,
    Stop,
    Submitted,
    Wanted,
)
from stack.scheduler.simulate import Costs, Simulation, Task
from stack.scheduler.spec import (
    Chip,
    Discipline,
    HostSpec,
    JobSpec,
    Option,
    QueueSpec,
    Rules,
    SpecError,
)
from tests import draw

QUEUES = (QueueSpec("q"),)


class Cluster:
    """A scheduler whose jobs do at once what they are told; `has` is the option of each."""

    def __init__(self, devices: dict[str, int], queues=QUEUES, rules=None) -> None:
        self.scheduler = Scheduler(queues, (), rules)
        self.specs: dict[int, JobSpec] = {}
        self.has: dict[int, Option] = {}
        self.moves = 0
        for kind, count in devices.items():
            for host in range(0, count, 2):
                chip = Chip(kind, min(2, count - host))
                self.tell(HostJoined(0.0, HostSpec(f"{kind}{host}", (chip,))))

    def tell(self, *events) -> None:
        """Have something happen, and all that follows from it."""
        todo = list(events)
        while todo:
            event = todo.pop(0)
            for decision in self.scheduler.handle(event):
                assert not isinstance(decision, Refuse), decision
                if isinstance(decision, Admit | Resize):
                    spec = self.specs[decision.job]
                    ranks = sum(len(share.devices) for share in decision.shares)
                    way = (decision.shares[0].kind, ranks, decision.strategy)
                    found = [o for o in spec.options if (o.kind, o.ranks, o.strategy) == way]
                    self.has[decision.job] = found[0] if found else None
                if isinstance(decision, AskToStop):
                    todo.append(Saved(event.at, decision.job))
                if isinstance(decision, Stop):
                    self.moves += 1
                    del self.has[decision.job]
                    todo.append(Ended(event.at, decision.job, done=False))
                if isinstance(decision, Resize):
                    self.moves += 1
                    todo.append(Resized(event.at, decision.job, decision.number))

    def submit(self, job: int, spec: JobSpec, at: float = 1.0) -> None:
        self.specs[job] = spec
        self.tell(Submitted(at, job, spec))

    def worth(self) -> float:
        """The weighted sum of the speeds, each as a part of its job's best."""
        return sum(
            self.specs[job].weight * option.speed / self.specs[job].fastest
            for job, option in self.has.items()
            if option is not None
        )


def opened(*options: Option, **more) -> JobSpec:
    first = options[0]
    return JobSpec("q", first.ranks, (first.kind,), options=options, **more)


def mix(random_: random.Random, jobs: int, kinds: tuple[str, ...], **more) -> list[JobSpec]:
    """Jobs that scale by Amdahl's law, each better on one kind than on the other."""
    specs = []
    for _ in range(jobs):
        serial = random_.uniform(0.0, 0.2)
        speeds = {kind: random_.uniform(0.3, 3.0) for kind in kinds}
        sizes = random_.sample((1, 2, 4, 8, 16), random_.randint(1, 3))
        options = [
            Option(kind, size, "data", speeds[kind] / (serial + (1 - serial) / size))
            for kind in kinds
            for size in sizes
        ]
        specs.append(opened(*options, weight=random_.choice((1.0, 1.0, 2.0)), **more))
    return specs


def all_at_once(specs: list[JobSpec], devices: dict[str, int]) -> Cluster:
    """A cluster whose devices fall free when all jobs wait for them."""
    cluster = Cluster(devices)
    every = sum(devices.values())
    cluster.submit(-1, JobSpec("q", every, tuple(devices), mixed=len(devices) > 1), 0.5)
    for job, spec in enumerate(specs):
        cluster.submit(job, spec)
    cluster.tell(Ended(2.0, -1))
    return cluster


def best_of_all(specs: list[JobSpec], devices: dict[str, int], must: frozenset[int]) -> float:
    """The best weighted sum of all combinations, none without an option that is in `must`."""

    def best(job: int, left: dict[str, int]) -> float:
        if job == len(specs):
            return 0.0
        spec = specs[job]
        found = [-math.inf if job in must else best(job + 1, left)]
        for option in spec.options:
            if option.ranks <= left[option.kind]:
                rest = {**left, option.kind: left[option.kind] - option.ranks}
                found.append(spec.weight * option.speed / spec.fastest + best(job + 1, rest))
        return max(found)

    return best(0, devices)


def drawn(seed: int) -> tuple[list[JobSpec], dict[str, int]]:
    """Up to 6 jobs that lose nothing by moving, on up to 8 hosts of two devices."""
    random_ = random.Random(seed)
    hosts = random_.randint(2, 8)
    first = random_.randint(1, hosts - 1)
    devices = {"a": 2 * first, "b": 2 * (hosts - first)}
    specs = mix(random_, random_.randint(1, 6), ("a", "b"), move_s=0.0)
    fit = [s for s in specs if any(o.ranks <= devices[o.kind] for o in s.options)]
    return fit, devices


@pytest.mark.parametrize("seed", draw.sample("at once", range(1000), 12))
def test_all_at_once_are_placed_within_five_percent_of_all_combinations(seed):
    specs, devices = drawn(seed)
    assert all_at_once(specs, devices).worth() >= 0.95 * best_of_all(specs, devices, frozenset())


@pytest.mark.parametrize("seed", draw.sample("one by one", range(1000), 12))
def test_one_by_one_they_come_within_five_percent_of_all_combinations(seed):
    """None that runs is stopped for another: the combinations are those that leave it something."""
    specs, devices = drawn(seed)
    cluster = Cluster(devices)
    for job, spec in enumerate(specs):
        cluster.submit(job, spec, 1.0 + job)
    run = frozenset(cluster.has)
    assert cluster.worth() >= 0.95 * best_of_all(specs, devices, run)


def fixed(specs: list[JobSpec], devices: dict[str, int], kind: str, size: int) -> float:
    """First come, first served, every job with the same strategy: this kind and size where it can,
    else the nearest below."""
    left, total = dict(devices), 0.0
    for spec in specs:
        for option in sorted(spec.options, key=lambda o: (o.kind != kind, -o.ranks)):
            if option.ranks <= min(size, left[option.kind]):
                left[option.kind] -= option.ranks
                total += spec.weight * option.speed / spec.fastest
                break
    return total


@pytest.mark.slow
def test_never_below_a_fixed_strategy_and_well_above_it_on_two_kinds():
    gains = []
    for seed in range(200):
        random_ = random.Random(1000 + seed)
        kinds = ("a", "b") if seed % 2 else ("a",)
        devices = dict.fromkeys(kinds, random_.choice((8, 16, 32)))
        specs = mix(random_, random_.randint(3, 8), kinds)
        specs = [s for s in specs if any(o.ranks <= devices[o.kind] for o in s.options)]
        ours = all_at_once(specs, devices).worth()
        best = max(fixed(specs, devices, k, s) for k in kinds for s in (1, 2, 4, 8, 16))
        assert ours >= best * (1 - 1e-12), seed
        if len(kinds) == 2:
            gains.append(ours / best)
    assert sum(gains) / len(gains) >= 1.10


@pytest.mark.parametrize(("move_s", "moves"), [(2800.0, 1), (2900.0, 0)])
def test_a_job_that_is_slower_than_was_said_goes_where_it_is_faster_if_that_pays(move_s, moves):
    """It has 5 of 9: in the hour for which a placement is thought to last, it gains 4/9 of an
    hour's work, and loses 5/9 of the work of the time that going over takes."""
    there, other = Option("a", 4, "tp", 10.0), Option("b", 4, "tp", 9.0)
    cluster = Cluster({"a": 4, "b": 4})
    cluster.submit(1, opened(there, other, move_s=move_s))
    assert cluster.has == {1: there}
    cluster.tell(Measured(2.0, 1, 5.0))
    assert (cluster.has[1], cluster.moves) == (other if moves else there, moves)
    cluster.tell(Measured(3.0, 1, 9.0))
    assert cluster.moves == moves


def test_two_change_places_though_nothing_is_free():
    """One stops for that, and starts where the other one was."""
    cluster = Cluster({"a": 4, "b": 4})
    a, b = Option("a", 4, "", 10.0), Option("b", 4, "", 9.0)
    cluster.submit(1, opened(a, b))
    cluster.submit(2, opened(a, b))
    assert cluster.has == {1: a, 2: b}
    cluster.tell(Measured(2.0, 1, 5.0))
    assert cluster.has == {1: b, 2: a}
    assert cluster.moves == 2


def test_one_that_is_about_to_end_by_its_limit_goes_nowhere():
    there, other = Option("a", 4, "", 10.0), Option("b", 4, "", 9.0)
    cluster = Cluster({"a": 4, "b": 4})
    cluster.submit(1, opened(there, other, limit_s=100.0))
    cluster.tell(Measured(21.0, 1, 5.0))
    assert cluster.moves == 1, "80 s are left, of which it gains 4/9, and it loses 5/9 of 60"
    cluster = Cluster({"a": 4, "b": 4})
    cluster.submit(1, opened(there, other, limit_s=100.0))
    cluster.tell(Measured(31.0, 1, 5.0))
    assert cluster.moves == 0


def test_it_leaves_nothing_where_that_would_not_be_enough():
    small, large = Option("a", 4, "", 5.0), Option("a", 8, "", 9.0)
    cluster = Cluster({"a": 8})
    cluster.submit(1, opened(large, small))
    assert cluster.has == {1: large}
    cluster.submit(2, JobSpec("q", 5, ("a",)), 2.0)
    assert cluster.has == {1: large}, "it cannot leave enough"
    cluster.submit(3, JobSpec("q", 4, ("a",)), 3.0)
    assert cluster.has[1] == large, "job 2 is before job 3"


def test_it_leaves_what_a_job_without_options_needs_and_takes_it_back():
    small, large = Option("a", 4, "", 5.0), Option("a", 8, "", 9.0)
    cluster = Cluster({"a": 8})
    cluster.submit(1, opened(large, small))
    cluster.submit(2, JobSpec("q", 3, ("a",)), 2.0)
    assert cluster.has == {1: small, 2: None}
    cluster.tell(Ended(3.0, 2))
    assert cluster.has[1] == large


def test_quotas_bound_the_choice():
    small, large = Option("a", 2, "", 5.0), Option("a", 8, "", 9.0)
    cluster = Cluster({"a": 8}, (QueueSpec("q", {"a": 6}),))
    cluster.submit(1, opened(small, large))
    cluster.submit(2, opened(small, Option("a", 4, "", 8.0)))
    assert {job: option.ranks for job, option in cluster.has.items()} == {1: 2, 2: 4}


def test_one_whose_host_is_lost_is_placed_anew():
    first, other = Option("a", 4, "", 5.0), Option("b", 2, "", 1.0)
    cluster = Cluster({"a": 4, "b": 2})
    cluster.submit(1, opened(first, other))
    cluster.tell(HostLost(2.0, "a0"))
    assert cluster.has == {1: other}


def test_none_that_runs_is_made_small_for_one_that_is_worth_less():
    best, poor = Option("a", 4, "", 9.0), Option("a", 1, "", 0.01)
    cluster = Cluster({"a": 4})
    cluster.submit(1, opened(best, Option("a", 3, "", 1.0)))
    cluster.submit(2, opened(poor, Option("a", 4, "", 9.0)), 2.0)
    assert cluster.has == {1: best}
    assert "finds room for 0" in cluster.scheduler.why(2)
    assert cluster.scheduler.why(1) == "it runs with 4 ranks of kind 'a'"


def test_what_options_cannot_be_is_refused_in_words():
    one = Option("a", 2, "", 1.0)
    for make, words in (
        (lambda: Option("a", 0, "", 1.0), "at least 1 rank"),
        (lambda: Option("a", 1, "", float("inf")), "its speed is inf"),
        (lambda: opened(one, one), "two options of one kind"),
        (lambda: opened(one, weight=0.0), "weight is 0"),
        (lambda: opened(one, move_s=-1.0), "move_s is -1"),
        (lambda: JobSpec("q", 3, ("a",), options=(one,)), "it begins with one of them"),
        (lambda: JobSpec("q", 2, ("a",), least=1, options=(one,)), "least and mixed"),
        (lambda: Rules(horizon_s=0.0), "horizon_s is 0"),
    ):
        with pytest.raises(SpecError, match=words):
            make()
    cluster = Cluster({"a": 4})
    (refused,) = cluster.scheduler.handle(Submitted(1.0, 1, opened(Option("a", 5, "", 1.0))))
    assert isinstance(refused, Refuse)
    assert "has room for 4 ranks" in refused.why
    cluster.submit(2, opened(one), 2.0)
    with pytest.raises(SpecError, match="lists options, which say how many ranks"):
        cluster.scheduler.handle(Wanted(3.0, 2, 1))
    with pytest.raises(SpecError, match="its speed is 0"):
        cluster.scheduler.handle(Measured(3.0, 2, 0.0))


@pytest.mark.parametrize("move_s", [0.0, 60.0])
def test_a_job_does_not_go_to_and_fro_while_nothing_else_happens(move_s):
    """The third job's turn was before the second's only while the first had more devices than their
    users' shares allow: it left two, was no more to leave any, took them back, and so on."""
    tasks = [
        Task(0.0, 0, JobSpec("q", 3, ("a",), user="v"), 1e4),
        Task(1.0, 1, open_job(("a", 4, 4.0), ("a", 2, 3.0), move_s=move_s), 1000.0),
        Task(2.0, 2, JobSpec("q", 4, ("a",), user="u"), 100.0),
        Task(3.0, 3, open_job(("a", 2, 1.0), queue="q", user="v", move_s=move_s), 100.0),
    ]
    queues = [QueueSpec("q", {"a": 5}, discipline=Discipline.LOCK), QueueSpec("free")]
    hosts = [HostSpec("h", (Chip("a", 8),))]
    rules = Rules(("user", "submitted"))
    outcome = Simulation(tasks, hosts, queues, (), rules, Costs(resize_s=10.0)).run()
    assert outcome.courses[1].resizes <= 2
    assert outcome.courses[1].ended < 2000


def open_job(*ways, queue="free", user="u", move_s):
    """A job with these options: a kind, ranks, and how fast it is by them."""
    options = tuple(Option(kind, ranks, "", speed) for kind, ranks, speed in ways)
    kind, ranks, _ = ways[0]
    return JobSpec(queue, ranks, (kind,), user=user, options=options, move_s=move_s)
