"""Where a rank stands in its job: what `hal run` tells every process that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, replace
from math import nan

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass

PREFIX = "HAL_WORLD_"
"""What the names of the variables begin with."""

LONGEST_S = 1e6
"""The longest time to wait, in seconds: 11 days. What waits for sockets takes no more than 24."""

BEAT_S = 1.0
"""How often a process that may be replaced, and the agent of its host, give a sign of life."""
SILENT_S = 1.5 * BEAT_S
"""One that gave none for so long is lost, for those that look and were not late themselves."""

_NAMES = (
    "RANK",
    "SIZE",
    "LOCAL_RANK",
    "LOCAL_SIZE",
    "HOST",
    "DEVICE",
    "STORE",
    "TOKEN",
    "JOB",
    "DEADLINE_S",
    "RESTART",
    "PROCESS",
)

MEMBER = "MEMBER"
"""The variable of a process that may be replaced: which one of the job's it is."""

LINE = "LINE"
"""The variable of such a process with the descriptor of its line to the agent of its host."""


@dataclass(frozen=True, slots=True)
class World:
    """A rank's place: `rank` of `size` in the job, `local_rank` of `local_size` on its host, which
    the launcher calls `host`.

    `device` is the name of the device that is the rank's own ("cpu:0"). `store` is where the job
    meets ("127.0.0.1:4711"), `token` what proves to it that a process belongs to the job. `job` is
    unique to a start of a job. Whoever waits for another rank gives up after `deadline_s` seconds.
    `restart` is how often the job was started before, 0 for its first start. `process` is the
    process that is the rank, which its children are not; 0 where the launcher does not say.
    `member` says that ranks may be replaced (`stack.fault`), and which one of the job's processes
    this is, as SEAT.START; then `rank` and `size` are those of an `epoch`, of which 0 is none yet.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    device: str
    store: str
    token: str = field(repr=False)
    job: str
    deadline_s: float
    restart: int = 0
    process: int = 0
    member: str = ""
    epoch: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> World:
        """What `hal run` has put into the environment (that of this process by default).

        Raises InvalidCall that names the variables which are missing or wrong.
        """
        given = os.environ if environment is None else environment
        missing = [PREFIX + name for name in _NAMES if not given.get(PREFIX + name)]
        if missing:
            raise InvalidCall(
                f"the environment lacks {', '.join(missing)}: this process is no rank of a job; "
                "start it by `hal run -n 2 SCRIPT`"
            )
        texts = {name: given[PREFIX + name] for name in _NAMES}
        try:
            deadline_s = float(texts["DEADLINE_S"])
        except ValueError:
            deadline_s = nan
        world = World(
            _whole(texts, "RANK"),
            _whole(texts, "SIZE"),
            _whole(texts, "LOCAL_RANK"),
            _whole(texts, "LOCAL_SIZE"),
            texts["HOST"],
            texts["DEVICE"],
            texts["STORE"],
            texts["TOKEN"],
            texts["JOB"],
            seconds_of(PREFIX + "DEADLINE_S", deadline_s, texts["DEADLINE_S"]),
            _whole(texts, "RESTART"),
            _whole(texts, "PROCESS"),
        )
        _within(world.rank, world.size, "RANK", "SIZE")
        _within(world.local_rank, world.local_size, "LOCAL_RANK", "LOCAL_SIZE")
        if world.local_size > world.size:
            raise InvalidCall(
                f"{PREFIX}LOCAL_SIZE is {world.local_size}, more than {PREFIX}SIZE, {world.size}"
            )
        host_and_port(world.store)
        return replace(world, member=given.get(PREFIX + MEMBER, ""))

    @property
    def silent_s(self) -> float | None:
        """After how long a rank that says nothing is lost; None for what follows from the
        deadline."""
        return SILENT_S if self.member else None

    @classmethod
    def present(cls, environment: Mapping[str, str] | None = None) -> World | None:
        """As `from_environment`, but None where the environment says nothing of a job."""
        given = os.environ if environment is None else environment
        if not any(PREFIX + name in given for name in _NAMES):
            return None
        return cls.from_environment(given)

    def check_process(self) -> None:
        """Raise InvalidCall where this process has the environment of a rank, and is not the rank:
        its child."""
        if self.process not in (0, os.getpid()):
            raise InvalidCall(taken(self.rank, self.process, self.host))

    def check_epoch(self) -> None:
        """Raise InvalidCall where ranks may be replaced and this process is not a rank yet."""
        if self.member and not self.epoch:
            raise InvalidCall(
                "this job may replace ranks (--least, --spares), so its groups are those of an "
                "epoch, and what a rank holds has to be declared: make groups from the mesh of a "
                "`stack.fault.Training`, or start the job without --least and --spares"
            )

    def environment(self) -> dict[str, str]:
        """The variables that `from_environment` reads."""
        own = {PREFIX + name: str(getattr(self, name.lower())) for name in _NAMES}
        return own | ({PREFIX + MEMBER: self.member} if self.member else {})


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of "127.0.0.1:4711" or "[::1]:4711". Raises InvalidCall for another text."""
    named, _, port = address.rpartition(":")
    host = named[1:-1] if named[:1] == "[" and named[-1:] == "]" else named
    digits = port.isascii() and port.isdecimal() and len(port) < 6
    if not host or not digits or not 0 < int(port) < 1 << 16 or (":" in named and host is named):
        raise InvalidCall(f'{address[:200]!r} is not an address; it is "host:port" or "[::1]:port"')
    return host, int(port)


def taken(rank: int, process: int, host: str) -> str:
    """Why this process cannot be a rank."""
    return (
        f"rank {rank} is taken by process {process} on host {host}; this is process {os.getpid()} "
        f"on {os.uname().nodename}. A child that a rank starts inherits its environment, but not "
        f'its place: guard the main module by `if __name__ == "__main__":`, or remove {PREFIX}* '
        "from the child's environment"
    )


def _within(rank: int, size: int, rank_name: str, size_name: str) -> None:
    if rank >= size:
        raise InvalidCall(
            f"{PREFIX}{rank_name} is {rank}; it must be below {PREFIX}{size_name}, {size}"
        )


def _whole(texts: Mapping[str, str], name: str) -> int:
    text = texts[name]
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidCall(f"{PREFIX}{name} is {text!r}; it must be a whole number")
    return int(text)


def seconds_of(name: str, seconds: float, said: str = "") -> float:
    """A time to wait that a person gave as `name`, in the words `said`. Raises InvalidCall for one
    that nothing can wait for."""
    if not 0 < seconds <= LONGEST_S:
        raise InvalidCall(
            f"{name} is {said[:80] or f'{seconds:g}'!r}; it must be a number of seconds above 0, "
            f"at most {LONGEST_S:,.0f}"
        )
    return seconds
