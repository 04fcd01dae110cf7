"""Keys by which waiting jobs are compared; `Rules.order` composes them, the first difference
decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hal.core.facts import dataclass

if TYPE_CHECKING:
    from stack.scheduler.gang import Gang
    from stack.scheduler.tally import Tally


@dataclass(frozen=True, slots=True)
class Use:
    """Devices in use and in all, by kind; what each user has; and the head start of who needs all
    devices (see KEYS)."""

    capacity: Mapping[str, int]
    users: Mapping[str, Tally]
    head_start_s: float = 0.0

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


def _wide(gang: Gang, use: Use) -> float:
    whole = use.capacity.get(gang.spec.kinds[0], 0)
    return gang.submitted - (use.head_start_s * gang.need / whole if whole else 0.0)


KEYS: dict[str, Key] = {
    "priority": lambda gang, _use: -gang.spec.priority,
    "submitted": lambda gang, _use: gang.seq,
    "share": lambda gang, use: use.dominant(gang.queue.tally.occupied) / gang.queue.spec.weight,
    "borrowing": lambda gang, _use: float(gang.queue.borrows(gang.spec.kinds[0]) + gang.need > 0),
    "user": lambda gang, use: use.dominant(use.users[gang.spec.user].occupied),
    "smallest": lambda gang, _use: gang.need,
    "shortest": lambda gang, _use: gang.left_s,
    "wide": _wide,
}
"""priority   the higher first
submitted  the earlier first
share      the queue with the smallest dominant share by its weight first
borrowing  queues within what they own before those that would borrow
user       the user with the smallest dominant share first
smallest   fewest devices first
shortest   smallest limit first
wide       the earlier first, with a head start by the devices needed: of `Rules.head_start_s` for
           all that there are. Small jobs find holes, so they lose little, and a job that needs much
           waits less long at the end; nobody is passed by who came later than the head start"""

MOVING = frozenset({"share", "borrowing", "user"})
"""Keys that change while a job waits, with what others use."""
