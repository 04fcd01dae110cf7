"""Keys by which waiting jobs are compared; `Rules.order` composes them, the first difference
decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stack.scheduler.gang import Gang
    from stack.scheduler.tally import Tally


@dataclass(frozen=True, slots=True)
class Use:
    """Devices in use and in all, by kind; and what each user has."""

    capacity: Mapping[str, int]
    users: Mapping[str, Tally]

    def dominant(self, used: Mapping[str, int]) -> float:
        """The largest part of any kind of device (dominant resource fairness, Ghodsi et al.,
        NSDI 2011)."""
        return max(
            (
                amount / self.capacity[kind]
                for kind, amount in used.items()
                if self.capacity.get(kind)
            ),
            default=0.0,
        )


Key = Callable[["Gang", Use], float]


def _priority(gang: Gang, _use: Use) -> float:
    return -gang.spec.priority


def _submitted(gang: Gang, _use: Use) -> float:
    return gang.seq


def _queue_share(gang: Gang, use: Use) -> float:
    return use.dominant(gang.queue.tally.occupied) / gang.queue.spec.weight


def _borrowing(gang: Gang, _use: Use) -> float:
    return float(gang.queue.borrows(gang.spec.kinds[0]) + gang.need > 0)


def _user_share(gang: Gang, use: Use) -> float:
    return use.dominant(use.users[gang.spec.user].occupied)


def _smallest(gang: Gang, _use: Use) -> float:
    return gang.need


def _shortest(gang: Gang, _use: Use) -> float:
    return gang.left_s


KEYS: dict[str, Key] = {
    "priority": _priority,
    "submitted": _submitted,
    "share": _queue_share,
    "borrowing": _borrowing,
    "user": _user_share,
    "smallest": _smallest,
    "shortest": _shortest,
}
"""priority   the higher first
submitted  the earlier first
share      the queue with the smallest dominant share by its weight first
borrowing  queues within what they own before those that would borrow
user       the user with the smallest dominant share first
smallest   fewest devices first
shortest   smallest limit first"""

MOVING = frozenset({"share", "borrowing", "user"})
"""Keys that change while a job waits, with what others use."""
