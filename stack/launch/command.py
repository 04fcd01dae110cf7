"""`hal run`: from the command line to a plan, and its run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import hal
from hal.core.discovery.installed import PLUGINS, entry_points
from hal.core.errors import InvalidCall
from stack.comm.world import seconds_of
from stack.launch import DEFINITION
from stack.launch.address import own_address
from stack.launch.again import run_until_well
from stack.launch.faults import JobFaults, check_faults
from stack.launch.hosts import read_hosts
from stack.launch.job import GRACE_S, Limits
from stack.launch.launcher import RunRequest
from stack.launch.membership import Elastic
from stack.launch.processes import descendants_end
from stack.launch.screen import fill_closed_streams
from stack.launch.seats import Host, device_names, seats


def run(
    target: str,
    arguments: Sequence[str],
    size: int | None,
    module: bool,
    devices: str,
    hosts_file: Path | None,
    log_folder: Path | None,
    shell: str,
    address: str,
    deadline_s: float,
    restarts: int = 0,
    mpi: bool = False,
    least: int | None = None,
    spares: int = 0,
    events: Path | None = None,
    keep: Path | None = None,
    faults: str = "",
    instead: str = "",
    grace_s: float = GRACE_S,
) -> int:
    """Run a script, or a module, as the ranks of a job; gives the exit status. A job that
    fails is started anew, at most `restarts` times. With `least` or `spares` its ranks are replaced
    instead, and `restarts` counts processes. With `mpi` this process is one of the ranks, which MPI
    has started. `events` is a file for a line of JSON for each event, `keep` a
    folder for the newest state of an elastic job that ends before its time. `faults` is
    a plan of faults that happen to an elastic job, as text, or a file with one. `instead` is the
    device with which a rank goes on whose own is lost, "" for the same one. Ranks that are asked to
    end are killed `grace_s` later.

    Raises InvalidCall for what cannot be started, PluginError for a device of a plugin that is not
    installed.
    """
    fill_closed_streams()
    named = device_names(devices) if devices else ()
    seconds_of("--deadline", deadline_s)
    if grace_s != 0:  # at once
        seconds_of("--grace", grace_s)
    if mpi:
        _check_left_to_mpi(size, hosts_file, log_folder, address, restarts, least, spares, events)
        from stack.launch.mpi import run_as_rank  # noqa: PLC0415  who launches is no rank

        there = _here(1, 0, named).devices
        return run_as_rank(target, arguments, module, there, deadline_s)
    hosts = read_hosts(hosts_file, named) if hosts_file else (_here(size or 1, spares, named),)
    slots = sum(host.slots for host in hosts)
    ranks = size or max(1, slots - spares)
    if spares and ranks + spares > slots:
        raise InvalidCall(
            f"{ranks} ranks and {spares} spares are asked for, but the hosts have {slots} slots"
        )
    elastic = None
    if keep is not None and least is None and not spares:
        raise InvalidCall("--keep is for jobs whose ranks may be replaced: give --least, too")
    planned = JobFaults.of(faults if not faults or " at " in faults else _read(Path(faults)))
    if planned.faults and least is None and not spares:
        raise InvalidCall("--faults is for jobs whose ranks may be replaced: give --least, too")
    check_faults(planned, keep is not None)
    if instead and not ((least is not None or spares) and restarts):
        raise InvalidCall(
            "--instead is for processes that are started again in an elastic job: give --least and "
            "--restarts, too"
        )
    if instead:
        if len(other := device_names(instead)) > 1:
            raise InvalidCall(f"--instead takes one device, not {instead}")
        _check_known(other)
    if least is not None or spares:
        elastic = Elastic(ranks, ranks if least is None else least, spares, restarts)
    plan = RunRequest(
        hosts,
        seats(hosts, ranks + spares),
        _command(target, arguments, module),
        Path.cwd(),
        log_folder,
        shell,
        address or own_address([host for host in hosts if host.name]),
        deadline_s,
        Limits(asked_s=grace_s),
        elastic=elastic,
        events=events,
        keep=keep,
        faults=planned if planned.faults else None,
        instead=instead,
    )
    with descendants_end():
        return run_until_well(plan, 0 if elastic else restarts)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise InvalidCall(f"--faults {file} is no plan, and no file with one: {error}") from error


def _check_left_to_mpi(*given: object) -> None:
    """Raise InvalidCall where something is given that MPI has decided."""
    if any(given):
        raise InvalidCall(
            "--mpi makes this process a rank of what mpirun has started, which says how many "
            "there are and where; leave out -n, --hosts, --log-dir, --address, --restarts, "
            "--least, --spares and --events"
        )


def _here(ranks: int, spares: int, named: Sequence[str]) -> Host:
    """This machine with the devices that are named, else with a device for each process."""
    size = ranks + spares
    if named:
        _check_known(named)
        return Host("", size, tuple(named))
    there = [row.name for row in hal.devices() if row.status == "ok" and row.plugin != DEFINITION]
    if len(there) < size:
        asked = f"{ranks} ranks" + (f" and {spares} spares" if spares else "")
        raise InvalidCall(
            f"{asked} are asked for, but there are {len(there)} devices "
            f"({', '.join(there) or 'none'}); name those that the ranks are to share, in turn: "
            f"--devices {there[0] if there else 'cpu:0'}"
        )
    return Host("", size, tuple(there))


def _check_known(named: Sequence[str]) -> None:
    known = {point.name for point in entry_points(PLUGINS)}
    for name in named:
        if name.partition(":")[0] not in known:
            raise InvalidCall(f"no plugin for {name} is installed; `hal devices` lists them")


def _command(target: str, arguments: Sequence[str], module: bool) -> tuple[str, ...]:
    if module:
        return (sys.executable, "-m", target, *arguments)
    if not Path(target).is_file():
        raise InvalidCall(f"there is no script {target!r}; for a module use `hal run -m {target}`")
    return (sys.executable, target, *arguments)
