"""What people write in TOML: a job, and the cluster that it runs on."""

from __future__ import annotations

import math
import re
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.inspect import EnumType, Metadata, StructType, Type, VarTupleType, type_info

import hal
from hal.core.errors import InvalidCall
from stack.cluster.given import plain
from stack.launch import DEFINITION
from stack.scheduler.spec import (
    Backfill,
    Chip,
    Discipline,
    HostSpec,
    JobSpec,
    Option,
    QueueSpec,
    Rules,
    SpecError,
)

SHELL = "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}"


Word = Annotated[str, Meta(pattern="^[^\0]*$")]
"""What a process can be given."""
Name = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
"""A variable that shells pass on."""


class OptionFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to run a job that leaves kind, ranks or strategy open."""

    kind: Annotated[str, Meta(description="The kind of device.", min_length=1)]
    ranks: Annotated[int, Meta(description="How many ranks it has then.", ge=1)]
    speed: Annotated[
        float, Meta(description="How fast it is then, in a unit of the job's own.", gt=0)
    ]
    strategy: Annotated[str, Meta(description="What its ranks find in HAL_STRATEGY then.")] = ""


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job: what runs, and what it needs. A rank has one device."""

    script: Annotated[Word, Meta(description="The script that each rank runs.", min_length=1)]
    arguments: Annotated[tuple[Word, ...], Meta(description="The script's arguments.")] = ()
    module: Annotated[bool, Meta(description="`script` is a module, as for `python -m`.")] = False
    folder: Annotated[Word, Meta(description="Where it runs; else where it is submitted.")] = ""
    environment: Annotated[
        dict[Name, Word], Meta(description="Variables that its ranks have besides the daemon's.")
    ] = {}
    restarts: Annotated[int, Meta(description="How often it starts again after failing.", ge=0)] = 0
    name: Annotated[str, Meta(description="What people call it.")] = ""
    queue: Annotated[str, Meta(description="The queue that it waits in.")] = "main"
    ranks: Annotated[int, Meta(description="How many ranks it wants.", ge=1)] = 1
    per_host: Annotated[
        int, Meta(description="Ranks on a host, for Slurm, Kubernetes and Ray (0: all).", ge=0)
    ] = 0
    image: Annotated[str, Meta(description="What Kubernetes runs: it has hal and the script.")] = ""
    resource: Annotated[
        str, Meta(description="How Kubernetes or Ray counts devices of the first kind.")
    ] = ""
    least: Annotated[int, Meta(description="With how many it starts (0: with all).", ge=0)] = 0
    kinds: Annotated[
        tuple[str, ...], Meta(description="Kinds of device, the best first.", min_length=1)
    ] = ("cpu",)
    mixed: Annotated[bool, Meta(description="Its ranks may be spread over several kinds.")] = False
    priority: Annotated[int, Meta(description="The higher goes first.")] = 0
    limit_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds that it may run with all its ranks."),
    ] = None
    grace_s: Annotated[float, Meta(description="Seconds that it needs to save.", ge=0)] = 30.0
    within: Annotated[str, Meta(description="The level that is to hold all ranks.")] = ""
    required: Annotated[bool, Meta(description="It waits rather than leave that level.")] = False
    balanced: Annotated[bool, Meta(description="Spread evenly over the fewest domains.")] = False
    options: Annotated[
        tuple[OptionFile, ...],
        Meta(description="Ways to run it, of which the cluster chooses one, and others later."),
    ] = ()
    weight: Annotated[
        float, Meta(description="What its speed counts beside that of others with options.", gt=0)
    ] = 1.0
    move_s: Annotated[
        float, Meta(description="Seconds that it loses by going over to another option.", ge=0)
    ] = 60.0

    @property
    def first_ranks(self) -> int:
        """How many ranks it wants; with options, by the first of these."""
        return self.options[0].ranks if self.options else self.ranks

    def spec(self, user: str) -> JobSpec:
        """What the scheduler knows of it, if `user` hands it in. Raises SpecError."""
        ranks, kinds = self.ranks, self.kinds
        options = tuple(Option(o.kind, o.ranks, o.strategy, o.speed) for o in self.options)
        if options:
            if (ranks, kinds, self.least, self.mixed) != (1, ("cpu",), 0, False):
                raise SpecError(
                    "a job with options has the ranks and the kind of one of them: leave out "
                    "ranks, kinds, least and mixed"
                )
            ranks, kinds = options[0].ranks, (options[0].kind,)
        return JobSpec(
            *(self.queue, ranks, kinds, self.least),
            priority=self.priority,
            limit_s=math.inf if self.limit_s is None else self.limit_s,
            grace_s=self.grace_s,
            within=self.within,
            required=self.required,
            balanced=self.balanced,
            mixed=self.mixed,
            user=user,
            name=self.name,
            options=options,
            weight=self.weight,
            move_s=self.move_s,
        )


class Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of one kind on a host; those of one `chip` are nearest to each other."""

    kind: str
    devices: Annotated[int, Meta(ge=1)]
    chip: str = "0"


class HostFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host and the domains that it lies in, one for each of the cluster's levels."""

    name: str
    chips: tuple[Devices, ...]
    domains: tuple[str, ...] = ()


class QueueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue; see `stack.scheduler.spec.QueueSpec`."""

    name: str
    quota: dict[str, int] = {}
    cohort: str = ""
    borrow: dict[str, int] = {}
    weight: float = 1.0
    discipline: Discipline = Discipline.FILL
    rung_s: float | None = None


class RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the cluster decides; see `stack.scheduler.spec.Rules`."""

    order: tuple[str, ...] = ("priority", "submitted")
    backfill: Backfill = Backfill.EASY
    preempt: bool = False
    reclaim: bool = True
    elastic: bool = True
    patience_s: float | None = None
    fair_start: float = 0.0
    head_start_s: float = 0.0
    horizon_s: float = 3600.0
    depth: int = 100


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster: levels of its topology (outermost first), queues, rules, and hosts (without any:
    this machine with the devices of the plugins that are installed). `shell` runs a command on
    another host, and these reach this one at `address` ("": by its name). `allocation` is the
    number of what lent the hosts until it ends: in another one they start anew. `users` may hand in
    jobs besides the one who runs the daemon; their jobs run as they, so he must be root."""

    levels: tuple[str, ...] = ()
    queues: tuple[QueueFile, ...] = (QueueFile("main"),)
    hosts: tuple[HostFile, ...] = ()
    rules: RulesFile = RulesFile()
    shell: str = SHELL
    address: str = ""
    allocation: str = ""
    users: tuple[str, ...] = ()

    def queue_specs(self) -> list[QueueSpec]:
        """The queues as the scheduler knows them. Raises SpecError."""
        if not self.queues:
            raise SpecError("the cluster has no queue; give it at least one [[queues]]")
        _check_names("queue", [queue.name for queue in self.queues])
        return [
            QueueSpec(
                *(queue.name, queue.quota, queue.cohort, queue.borrow, queue.weight),
                *(queue.discipline, math.inf if queue.rung_s is None else queue.rung_s),
            )
            for queue in self.queues
        ]

    def rule_spec(self) -> Rules:
        """The rules as the scheduler knows them."""
        rules = msgspec.structs.asdict(self.rules)
        if rules["patience_s"] is None:
            rules["patience_s"] = math.inf
        return Rules(**rules)

    def host_specs(self) -> list[HostSpec]:
        """The hosts. Raises SpecError, also when there is no device at all."""
        if not self.hosts:
            return [this_machine()]
        _check_names("host", [host.name for host in self.hosts])
        return [
            HostSpec(
                host.name,
                tuple(Chip(chip.kind, chip.devices, chip.chip) for chip in host.chips),
                host.domains,
            )
            for host in self.hosts
        ]


def _check_names(what: str, names: list[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[^\s/]+", name):
            raise SpecError(
                f"{name!r} is no name for a {what}: it has a space, a slash, or nothing"
            )
        if names.count(name) > 1:
            raise SpecError(f"the cluster has two {what}s of the name {name!r}")


def this_machine() -> HostSpec:
    """This machine with the devices that its plugins give. Raises SpecError where there is none."""
    rows = [row for row in hal.devices() if row.status == "ok" and row.plugin != DEFINITION]
    kinds = Counter(row.name.partition(":")[0] for row in rows)
    if not kinds:
        raise SpecError("no plugin gives a device here; `hal doctor` says why")
    return HostSpec(socket.gethostname(), tuple(Chip(kind, kinds[kind], kind) for kind in kinds))


File = TypeVar("File", bound=msgspec.Struct)


def read(path: Path, kind: type[File]) -> File:
    """The job or cluster of a TOML file. Raises InvalidCall."""
    return told(plain(path), kind, str(path))


def told(found: Mapping[str, Any], kind: type[File], where: str) -> File:
    """The job or cluster of plain data. Raises InvalidCall."""
    try:
        file = msgspec.convert(dict(found), kind)
        msgspec.json.encode(file)
    except UnicodeEncodeError as error:
        raise InvalidCall(f"{where}: {error.object!r} is not text (UTF-8)") from error
    except msgspec.ValidationError as error:
        known = ", ".join(_known(str(error), kind))
        there = f"; there are: {known}" if known else ""
        raise InvalidCall(f"{where}: {error}{there}") from error
    return file


def _known(complaint: str, kind: type[msgspec.Struct]) -> list[str]:
    """The fields, or the words, that may stand where msgspec has found another one; [] for any
    other complaint."""
    if "unknown field" not in complaint and "enum value" not in complaint:
        return []
    here = _bare(type_info(kind))
    for name, _ in re.findall(r"\.(\w+)|\[(\d+)\]", complaint.partition("`$")[2]):
        if isinstance(here, StructType):
            here = _bare(next(field.type for field in here.fields if field.name == name))
        elif isinstance(here, VarTupleType):
            here = _bare(here.item_type)
    if isinstance(here, EnumType):
        return [word.value for word in here.cls]
    return [field.name for field in here.fields] if isinstance(here, StructType) else []


def _bare(found: Type) -> Type:
    return _bare(found.type) if isinstance(found, Metadata) else found
