"""What a scheduler promised, kept in books of our own: who holds which device, by the decisions
alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from stack.scheduler.events import (
    Admit,
    AskToStop,
    Cancelled,
    Decision,
    Ended,
    Event,
    HostDrained,
    HostJoined,
    HostLost,
    Refuse,
    Resize,
    Resized,
    Saved,
    Share,
    Stop,
    Submitted,
    Wanted,
)
from stack.scheduler.spec import HostSpec, JobSpec, QueueSpec

Device = tuple[str, str, str, int]


class Laws:
    """Sees every event with its decisions, and fails where a promise is broken."""

    def __init__(self, queues: list[QueueSpec], levels: tuple[str, ...]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.levels = (*levels, "host", "chip")
        self.hosts: dict[str, HostSpec] = {}
        self.closed: set[str] = set()
        self.specs: dict[int, JobSpec] = {}
        self.holds: dict[int, set[Device]] = {}
        self.leaves: dict[int, set[Device]] = {}
        self.numbers: dict[int, int] = {}
        self.asked: dict[int, float] = {}
        self.saved: set[int] = set()
        self.stopped: set[int] = set()
        self.cancelled: set[int] = set()
        self.broken: set[int] = set()
        self.wanted: set[int] = set()
        self.waiting: dict[int, float] = {}
        self.starts: dict[int, float] = {}

    def see(self, event: Event, decisions: list[Decision]) -> None:
        """Check one event's decisions."""
        self._happened(event)
        for decision in decisions:
            self._decided(decision, event.at)
        self._owners()
        self._quotas()

    def _happened(self, event: Event) -> None:
        match event:
            case Submitted(at, job, spec):
                self.specs[job], self.waiting[job] = spec, at
            case Cancelled(_, job):
                self.cancelled.add(job)
                self.waiting.pop(job, None)
            case Wanted(_, job, ranks):
                old = self.specs[job]
                if job not in self.asked and job not in self.stopped:
                    least = min(old.fewest, ranks)
                    self.specs[job] = replace(old, ranks=ranks, least=least)
                    self.wanted.add(job)
            case Saved(_, job):
                self.saved.add(job)
            case Ended(at, job, done):
                self.holds.pop(job, None)
                self.leaves.pop(job, None)
                again = not done and job not in self.cancelled and job in self.stopped
                if again:
                    self.waiting[job] = at
                for books in (self.asked, self.numbers):
                    books.pop(job, None)
                self.saved.discard(job)
                self.stopped.discard(job)
                self.broken.discard(job)
            case Resized(_, job, number):
                if self.numbers.get(job) == number:
                    self.leaves.pop(job, None)
            case HostJoined(_, host):
                self.hosts[host.name] = host
                self.closed.discard(host.name)
            case HostDrained(_, host):
                self.closed.add(host)
            case HostLost(_, host):
                self.closed.add(host)
                for job, held in self.holds.items():
                    gone = {device for device in held if device[0] == host}
                    if gone:
                        held -= gone
                        self.broken.add(job)
                for leaving in self.leaves.values():
                    leaving -= {device for device in leaving if device[0] == host}

    def _decided(self, decision: Decision, at: float) -> None:
        job = decision.job
        spec = self.specs[job]
        match decision:
            case Refuse():
                self.waiting.pop(job)
            case Admit(_, shares, strategy):
                assert job in self.waiting, f"job {job} starts, but does not wait"
                del self.waiting[job]
                self.starts.setdefault(job, at)
                self.holds[job] = self._gang(job, spec, shares, strategy)
            case Resize(_, shares, _, number, strategy):
                assert not self.leaves.get(job) or job in self.broken | self.wanted
                self.wanted.discard(job)
                new = self._gang(job, spec, shares, strategy)
                old = self.holds[job]
                self.leaves.setdefault(job, set()).update(old - new)
                self.holds[job] = new
                self.numbers[job] = number
                self.broken.discard(job)
            case AskToStop(_, by, _):
                assert job in self.holds
                assert by == at + spec.grace_s
                self.asked[job] = by
            case Stop():
                assert job in self.holds or job in self.broken
                allowed = (
                    job in self.cancelled
                    or job in self.saved
                    or job in self.broken
                    or at >= self.asked.get(job, math.inf)
                )
                assert allowed, f"job {job} is stopped before it has saved"
                assert job not in self.stopped, f"job {job} is stopped twice"
                self.stopped.add(job)

    def _gang(
        self, job: int, spec: JobSpec, shares: tuple[Share, ...], strategy: str
    ) -> set[Device]:
        devices: list[Device] = []
        ranks = 0
        domains: set[tuple[str, ...]] = set()
        for share in shares:
            host = self.hosts[share.host]
            chip = next(chip for chip in host.chips if chip.name == share.chip)
            assert chip.kind == share.kind
            assert all(0 <= device < chip.devices for device in share.devices)
            assert len(share.devices) % spec.devices == 0, "a rank lies on two chips"
            ranks += len(share.devices) // spec.devices
            devices += [(share.host, share.chip, share.kind, device) for device in share.devices]
            if spec.required:
                path = (*host.domains, host.name, chip.name)
                domains.add(path[: self.levels.index(spec.within) + 1])
        assert len(set(devices)) == len(devices)
        kinds = {share.kind for share in shares}
        assert len(kinds) == 1 or spec.mixed
        if spec.options:
            (kind,) = kinds
            way = (kind, ranks, strategy)
            assert way in {(o.kind, o.ranks, o.strategy) for o in spec.options}, f"job {job}: {way}"
        else:
            assert kinds <= set(spec.kinds)
            assert spec.fewest <= ranks <= spec.ranks, f"job {job} has {ranks} ranks"
            assert strategy == ""
        assert len(domains) <= 1, f"job {job} lies in {domains}"
        old = self.holds.get(job, set())
        fresh = set(devices) - old
        assert not {device for device in fresh if device[0] in self.closed}
        return set(devices)

    def _owners(self) -> None:
        owners: dict[Device, int] = {}
        for books in (self.holds, self.leaves):
            for job, devices in books.items():
                for device in devices:
                    assert device not in owners, f"{device}: jobs {owners[device]} and {job}"
                    owners[device] = job

    def _quotas(self) -> None:
        used: dict[str, Counter[str]] = {name: Counter() for name in self.queues}
        for job, devices in self.holds.items():
            used[self.specs[job].queue].update(device[2] for device in devices)
        for job, devices in self.leaves.items():
            used[self.specs[job].queue].update(device[2] for device in devices)
        cohorts: dict[str, Counter[str]] = {}
        owned: dict[str, Counter[str]] = {}
        for name, queue in self.queues.items():
            if not queue.quota:
                continue
            for kind, count in used[name].items():
                if queue.cohort and kind not in queue.borrow:
                    continue
                most = queue.quota.get(kind, 0) + (queue.borrow[kind] if queue.cohort else 0)
                assert count <= most, f"queue {name} has {count} of {most} {kind}"
            label = queue.cohort or f"queue {name}"
            cohorts.setdefault(label, Counter()).update(used[name])
            owned.setdefault(label, Counter()).update(queue.quota)
        for label, counts in cohorts.items():
            for kind, count in counts.items():
                assert count <= owned[label][kind], f"{label} has {count} {kind}"

    def at_the_end(self) -> None:
        """After all jobs have ended nothing is held and nobody was asked in vain."""
        assert not self.holds
        assert not self.leaves
        assert not self.asked
