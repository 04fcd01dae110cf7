"""Which of the operations that may run runs next."""

from __future__ import annotations

import random
from collections.abc import Sequence


class Order:
    """The oldest first."""

    def pick(self, numbers: Sequence[int]) -> int:
        """The index of one of the operations, given by their numbers of submission."""
        return numbers.index(min(numbers))

    def hold_s(self) -> float:
        """How long a new operation is held back while nobody waits."""
        return 0.0


class AdversarialOrder(Order):
    """What a caller that forgot a wait likes least: newer operations run before older ones, and
    none runs before more may have come. The choices follow from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, numbers: Sequence[int]) -> int:
        if self._random.random() < 0.25:
            return self._random.randrange(len(numbers))
        return numbers.index(max(numbers))

    def hold_s(self) -> float:
        return self._random.choice((0.0, 0.0005, 0.002))
