"""What has happened, durably: events, jobs and the runs that were decided, in SQLite."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import msgspec

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from stack.cluster.files import ClusterFile, JobFile
from stack.scheduler.events import Event, Share

VERSION = 6
ENDED = 10_000
"""How many jobs that ended are remembered."""
_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
_TABLES = """
create table if not exists facts (name text primary key, value text not null);
create table if not exists events (
    seq integer primary key, kind text not null, value text not null);
create table if not exists jobs (
    job integer primary key autoincrement, file text not null, user text not null, at real not null,
    ended real, outcome text);
create table if not exists runs (
    job integer not null, number integer not null, shares text not null, resize integer,
    strategy text not null,
    primary key (job, number));
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job, the `number`-th, on these devices by this strategy; `resize` is the
    number of the decision that it carries out, where it is one."""

    job: int
    number: int
    shares: tuple[Share, ...]
    resize: int | None = None
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as `user` has handed it in, and what became of it ("" while it is here)."""

    job: int
    file: JobFile
    user: str
    at: float
    ended: float | None
    outcome: str


class Journal:
    """The journal in a folder, of one daemon. What is added is there after `commit`; after
    `rollback` it is as if it had never been.

    Raises InvalidCall for a folder that another daemon has, or a journal that is none."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock, path = folder / "lock", folder / "journal.db"
        for file in (lock, path):  # others may enter the folder of a cluster that they may use
            os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._lock = lock.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InvalidCall(
                f"another daemon has the cluster in {folder}; stop it (`hal cluster stop`), or "
                "name another folder with --state"
            ) from None
        try:
            self._base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._base.execute("pragma journal_mode = wal")
            self._base.execute("pragma synchronous = full")
            self._base.executescript(_TABLES)
            version = self.fact("version")
            if version is None:
                self.set_fact("version", VERSION)
                self.commit()
        except sqlite3.OperationalError as error:
            self._lock.close()
            raise InvalidCall(
                f"the journal cannot be written: {error}; make room on the disk of {folder}"
            ) from error
        except sqlite3.DatabaseError as error:
            self._lock.close()
            raise InvalidCall(f"{path} is no journal that can be used: {error}") from error
        if version not in (None, VERSION):
            self.close()
            raise InvalidCall(
                f"{path} is a journal of version {version}; this reads {VERSION}: let the daemon "
                "that wrote it end its jobs, or name another folder with --state"
            )

    def close(self) -> None:
        """Leave the journal to others."""
        self._base.close()
        self._lock.close()

    @property
    def is_clean(self) -> bool:
        """Whether all that was added is durable."""
        return not self._base.in_transaction

    def commit(self) -> None:
        """Make what was added durable."""
        if self._base.in_transaction:
            self._base.execute("commit")

    def rollback(self) -> None:
        """Forget what was added since the last commit."""
        if self._base.in_transaction:
            self._base.execute("rollback")

    def fact(self, name: str) -> Any:
        """A value of the journal's own, None where there is none."""
        row = self._base.execute("select value from facts where name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_fact(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        self._write("insert or replace into facts values (?, ?)", name, json.dumps(value))

    def add_event(self, event: Event) -> None:
        """An event, behind all others."""
        text = json.dumps(asdict(event))
        self._write("insert into events (kind, value) values (?, ?)", type(event).__name__, text)

    def events(self) -> Iterator[Event]:
        """The events since the snapshot, in order."""
        for kind, value in self._base.execute("select kind, value from events order by seq"):
            found: Event = msgspec.convert(json.loads(value), _EVENTS[kind])
            yield found

    def keep_snapshot(self, state: dict[str, Any], config: ClusterFile) -> None:
        """The scheduler's state after all events, and what it was made with."""
        self.set_fact("snapshot", state)
        self.set_fact("config", msgspec.to_builtins(config))
        self._write("delete from events")
        self._write(
            "delete from jobs where ended is not null and job not in "
            "(select job from jobs where ended is not null order by ended desc limit ?)",
            ENDED,
        )
        self._write("delete from runs where job not in (select job from jobs)")

    def config(self) -> ClusterFile | None:
        """What the scheduler of the snapshot was made with."""
        found = self.fact("config")
        return None if found is None else msgspec.convert(found, ClusterFile)

    def add_job(self, job: int, file: JobFile, user: str, at: float) -> None:
        """A job that was handed in."""
        text = msgspec.json.encode(file).decode()
        self._write("insert into jobs values (?, ?, ?, ?, null, null)", job, text, user, at)

    def set_file(self, job: int, file: JobFile) -> None:
        """What a job is from now on."""
        text = msgspec.json.encode(file).decode()
        self._write("update jobs set file = ? where job = ?", text, job)

    def end_job(self, job: int, at: float, outcome: str) -> None:
        """What became of a job."""
        self._write("update jobs set ended = ?, outcome = ? where job = ?", at, outcome, job)

    def next_job(self) -> int:
        """A number that no job has had."""
        last = self._base.execute("select seq from sqlite_sequence where name = 'jobs'").fetchone()
        return int(last[0] if last else 0) + 1

    def job(self, job: int) -> JobRecord | None:
        """A job, None where there is none of this number."""
        return next(self._records("where job = ?", job), None)

    def jobs(self, ended: int, user: str = "") -> list[JobRecord]:
        """All jobs that are here, and the last ones that ended, by number; of one user, or of all
        without a name."""
        whose = "? in ('', user)"
        here = self._records(f"where ended is null and {whose}", user)
        gone = self._records(
            f"where ended is not null and {whose} order by ended desc limit ?", user, ended
        )
        return sorted([*here, *gone], key=lambda record: record.job)

    def add_run(self, run: Attempt) -> None:
        """A start that was decided."""
        shares = json.dumps([asdict(share) for share in run.shares])
        values = (run.job, run.number, shares, run.resize, run.strategy)
        self._write("insert into runs values (?, ?, ?, ?, ?)", *values)

    def runs(self, job: int) -> list[Attempt]:
        """The starts of a job, in order."""
        rows = self._base.execute(
            "select number, shares, resize, strategy from runs where job = ? order by number",
            (job,),
        )
        return [
            Attempt(job, number, msgspec.convert(json.loads(shares), tuple[Share, ...]), *rest)
            for number, shares, *rest in rows
        ]

    def _records(self, where: str, *values: object) -> Iterator[JobRecord]:
        rows = self._base.execute(
            f"select job, file, user, at, ended, outcome from jobs {where}", values
        )
        for job, file, user, at, ended, outcome in rows:
            found = msgspec.json.decode(file, type=JobFile)
            yield JobRecord(job, found, user, at, ended, outcome or "")

    def _write(self, statement: str, *values: object) -> None:
        if not self._base.in_transaction:
            self._base.execute("begin")
        self._base.execute(statement, values)
