"""What a race says, and the races inside of a recorded graph."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.errors import HalError
from hal.core.facts import dataclass
from hal.core.values import Argument, Command, LaunchCommand, Region
from hal.core.wrappers.footprint import Bound, Footprint, Touch, conflict, of_command, unordered


class Race(HalError):
    """Two operations race. Both were submitted; `first` and `second` say what they are."""

    next_step = "let the second operation wait for the first one's point"

    def __init__(self, message: str, first: str, second: str) -> None:
        super().__init__(message)
        self.first = first
        self.second = second


def race_of(first: str, before: Touch, second: str, touch: Touch) -> Race:
    """The race of two operations that are called so, at these touches."""
    start, end = max(before.start, touch.start), min(before.end, touch.end)
    buffer = touch.buffer
    text = (
        f"{buffer.device}: race on bytes [{start}, {end}) of a buffer of {buffer.nbytes} bytes in "
        f"{buffer.space} (id {id(buffer):x}): {first} {_does(before)}, {second} {_does(touch)}, "
        f"and neither waits for the other"
    )
    return Race(text, first, second)


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """A graph's commands, what their launchables were bound to, and which of them are unordered.

    `checked` has the slot arguments for which these were compared already.
    """

    commands: tuple[Command, ...]
    bound: Bound
    pairs: tuple[tuple[int, int], ...]
    checked: set[tuple[object, ...]]

    def touches(self, slots: Sequence[Argument]) -> list[Footprint]:
        """What each command touches with these arguments in the slots."""
        return [of_command(command, self.bound, slots) for command in self.commands]

    def check(self, slots: Sequence[Argument]) -> None:
        """Raise Race for two unordered commands that conflict."""
        given = tuple(arg if isinstance(arg, Region) else id(arg) for arg in slots)
        if given in self.checked:
            return
        touches = self.touches(slots)
        for first, second in self.pairs:
            if pair := conflict(touches[first], touches[second]):
                raise race_of(self._said(first), pair[0], self._said(second), pair[1])
        self.checked.add(given)

    def __str__(self) -> str:
        names = list(dict.fromkeys(_name(command) for command in self.commands))
        more = ", ..." if len(names) > 3 else ""
        return f"{len(self.commands)} commands ({', '.join(names[:3])}{more})"

    def _said(self, index: int) -> str:
        return f"{_name(self.commands[index])} (command {index} of a graph)"


def recorded_of(commands: Sequence[Command], bound: Bound) -> RecordedGraph:
    """Commands that are recorded, whose launchables are bound to these arguments."""
    launches = [c.launchable for c in commands if isinstance(c, LaunchCommand)]
    kept = {id(launchable): bound[id(launchable)] for launchable in launches}
    return RecordedGraph(tuple(commands), kept, tuple(unordered(commands)), set())


def _name(command: Command) -> str:
    if isinstance(command, LaunchCommand):
        return f"launch {command.launchable.program.entry}"
    return type(command).__name__.removesuffix("Command").lower()


def _does(touch: Touch) -> str:
    return f"{'writes' if touch.writes else 'reads'} [{touch.start}, {touch.end})"
