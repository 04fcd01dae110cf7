"""What a scheduler is told, and what it decides. Times are seconds on the caller's clock, which
never goes back."""

from __future__ import annotations

from hal.core.facts import dataclass
from stack.scheduler.spec import HostSpec, JobSpec


@dataclass(frozen=True, slots=True)
class Share:
    """What a job has of one chip: device numbers there, a rank taking `JobSpec.devices` of them."""

    host: str
    chip: str
    kind: str
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job was handed in under a number that no other has had."""

    at: float
    job: int
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Its user wants a job no more."""

    at: float
    job: int


@dataclass(frozen=True, slots=True)
class Held:
    """A waiting job shall not start until it is released; a running one is not touched."""

    at: float
    job: int


@dataclass(frozen=True, slots=True)
class Released:
    """A held job may start."""

    at: float
    job: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Its user wants another number of ranks for a job. It goes on with no fewer than it needed
    before, or with so many: with more once there is room. One that stops keeps its number."""

    at: float
    job: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A job has found out how fast it is by the option that it has now. Of a job that goes over to
    another one, or has none, nothing is learnt."""

    at: float
    job: int
    speed: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A job that was asked to stop has saved its state: it may be stopped."""

    at: float
    job: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A job's ranks are gone: by themselves (`done`), or because they were stopped or lost."""

    at: float
    job: int
    done: bool = True


@dataclass(frozen=True, slots=True)
class Resized:
    """A job has carried out its `Resize` of this number."""

    at: float
    job: int
    number: int


@dataclass(frozen=True, slots=True)
class HostJoined:
    """A host is there, for the first time or again."""

    at: float
    host: HostSpec


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host is out of reach; what ran there is gone."""

    at: float
    host: str


@dataclass(frozen=True, slots=True)
class HostDrained:
    """A host shall get nothing new; what runs there goes on."""

    at: float
    host: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """The time `Scheduler.alarm_at` has come."""

    at: float


Event = (
    Submitted
    | Cancelled
    | Held
    | Released
    | Wanted
    | Measured
    | Saved
    | Ended
    | Resized
    | HostJoined
    | HostLost
    | HostDrained
    | Alarm
)


@dataclass(frozen=True, slots=True)
class Refuse:
    """The job can never run here."""

    job: int
    why: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Start the whole gang on these devices, by the strategy that was chosen with them ("" for a
    job without options)."""

    job: int
    shares: tuple[Share, ...]
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """The job goes on on exactly these devices, by this strategy. Those that it does not keep are
    free once it says `Resized` with this number; the others it has from now on."""

    job: int
    shares: tuple[Share, ...]
    why: str
    number: int
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class AskToStop:
    """The job shall save and then say `Saved`; it is stopped then, or at the time `by`."""

    job: int
    by: float
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the job's ranks now; say `Ended` when they are gone."""

    job: int
    why: str


Decision = Refuse | Admit | Resize | AskToStop | Stop
