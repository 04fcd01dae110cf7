"""Where the time of an elastic job went, told from its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hal.core.facts import dataclass

KINDS: Mapping[str, str] = {
    "step": "steps that count",
    "save": "copies of the state",
    "detect": "from the last step that all did until it was noticed that one is of no use",
    "start": "processes that start, before there are enough ranks",
    "agree": "ranks that meet and compare what they hold",
    "restore": "state that goes to those who lack it",
    "redo": "steps that were done before",
    "end": "after the last step",
}
_OF_NO_USE = ("ended", "stopped", "silent", "stuck", "host lost", "device lost")


@dataclass(frozen=True, slots=True)
class Report:
    """Seconds of a job by `KINDS`, its steps that count and those done again, and how often ranks
    went on in another epoch."""

    seconds: Mapping[str, float]
    steps: int
    redone: int
    recoveries: int

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The share of time in steps that count."""
        return self.seconds["step"] / self.total_s if self.total_s else 0.0

    def __str__(self) -> str:
        rest = [f"{kind} {s:.2f} s" for kind, s in self.seconds.items() if kind != "step" and s > 0]
        head = f"{self.steps} steps in {self.total_s:.1f} s, {self.goodput:.1%} of it steps that "
        tail = f"{self.recoveries} recoveries, {self.redone} steps done again"
        return f"{head}count; {', '.join(rest)}; {tail}"


class Spent:
    """Takes a job's events in their order, as lines of `--events` have them. Every moment counts as
    one of `KINDS`: a step lasts until all ranks of the epoch have done it."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._now_s = 0.0
        """All before is told."""
        self._members: set[int] = set()
        self._waiting: set[int] = set()
        """Members that are not in the epoch yet."""
        self._noticed = True
        self._restore_s = 0.0
        self._done: dict[int, tuple[int, float]] = {}
        self._common = self._best = -1
        self._steps = self._redone = self._epochs = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """Raises KeyError for what is no event of a job."""
        match event["event"]:
            case "found" if event["kind"] in _OF_NO_USE and event["seat"] in self._members:
                # A rank is of no use; others may follow, and some while the ranks meet.
                if not self._noticed:
                    self._pass("agree" if self._waiting else "detect", event["at_s"])
                self._noticed = True
            case "form":
                self._pass("start" if self._noticed else "agree", event["at_s"])
                members = event["epoch"]["members"]
                self._members = {int(str(member).split(".")[0]) for member in members}
                self._waiting, self._restore_s = set(self._members), 0.0
                self._noticed, self._done = False, {}
            case "entered" if event["seat"] in self._waiting:
                self._waiting.discard(event["seat"])
                self._restore_s = max(self._restore_s, event["restore_s"])
                if not self._waiting:
                    lasted_s = event["at_s"] - self._now_s
                    self._pass("restore", self._now_s + min(lasted_s, self._restore_s))
                    self._pass("agree", event["at_s"])
                    self._epochs += 1
                    self._common = event["step"]
                    self._best = max(self._best, self._common)
            case "step" if event["seat"] in self._members and not self._waiting:
                self._done[event["seat"]] = event["step"], event["save_s"]
                at_s = event["at_s"]
                if set(self._done) != self._members:
                    return
                common = min(step for step, _ in self._done.values())
                if common <= self._common:
                    return
                save_s = max(save_s for _, save_s in self._done.values())
                again = common <= self._best
                self._pass("save", self._now_s + min(save_s, at_s - self._now_s))
                self._pass("redo" if again else "step", at_s)
                self._redone += again * (common - self._common)
                self._steps += max(0, common - self._best)
                self._common, self._best = common, max(self._best, common)
            case "back":
                self._common, self._done = event["step"], {}
            case "finish":
                self._pass("end", event["at_s"])

    @property
    def report(self) -> Report:
        """So far."""
        recoveries = max(0, self._epochs - 1)
        return Report(dict(self._seconds), self._steps, self._redone, recoveries)

    def _pass(self, kind: str, until_s: float) -> None:
        """What is not told yet, up to this moment, was this."""
        self._seconds[kind] += max(0.0, until_s - self._now_s)
        self._now_s = max(self._now_s, until_s)
