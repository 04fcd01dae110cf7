"""The commands of a cluster, which know nothing of the stack until they run."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)
_STATE = click.option(
    *("--state", "folder"),
    type=_PATH,
    help="The cluster's folder ($HAL_CLUSTER, else one of your own).",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_JOB = click.argument("job", type=click.IntRange(1))


def _do(name: str, folder: Path | None, *arguments: Any) -> None:
    """Ask the daemon of a folder."""
    command = import_module("stack.cluster.command")
    sys.exit(getattr(command, name)(folder or command.default_folder(), *arguments))


def _module(name: str) -> Any:
    """A module that needs what an extra installs."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        text = "a cluster needs msgspec: pip install hal-accel[cluster]"
        raise click.ClickException(text) from None


@click.group()
def cluster() -> None:
    """Run the daemon that gives devices to jobs."""


@cluster.command()
@_STATE
@click.option("--config", type=_FILE, help="A TOML file.")
@click.option("--page", "port", type=click.IntRange(0, 65535), help="Serve a page at this port.")
@click.option("--background", is_flag=True, help="Return once it answers.")
@click.option("--slurm", "in_slurm", is_flag=True, help="On the hosts of this allocation.")
def start(
    folder: Path | None, config: Path | None, port: int | None, background: bool, in_slurm: bool
) -> None:
    """Start the daemon of a cluster: by default this machine with all its devices."""
    module = _module("stack.cluster.serve")
    place = folder or import_module("stack.cluster.command").default_folder()
    sys.exit(module.start(place, config, port, background, in_slurm))


@cluster.command()
@_STATE
def stop(folder: Path | None) -> None:
    """End the daemon. Jobs go on; the next daemon finds them."""
    _do("stop", folder)


@cluster.command()
@_STATE
def page(folder: Path | None) -> None:
    """Print the address of the daemon's page, with your own token."""
    _do("page", folder)


@click.command(context_settings={"allow_interspersed_args": False})
@_STATE
@_JSON
@click.option("--schema", is_flag=True, help="Print what a job's file may say, and end.")
@click.option("-n", "ranks", type=click.IntRange(1), help="Ranks.")
@click.option("--least", type=click.IntRange(0), help="Start with so few.")
@click.option("--kind", "kinds", multiple=True, help="A kind of device, the best first.")
@click.option("--queue", help="The queue that it waits in.")
@click.option("--priority", type=int, help="The higher goes first.")
@click.option("--name", help="What people call it.")
@click.option("--limit", "limit_s", type=float, help="Seconds that it may run.")
@click.option("-m", "module", is_flag=True, default=None, help="TARGET is a module.")
@click.option(
    "--per-host", type=click.IntRange(1), help="Ranks on a host, for Slurm and Kubernetes."
)
@click.option("--image", help="The image, for Kubernetes.")
@click.option(
    "--to",
    type=click.Choice(["daemon", "slurm", "k8s", "ray"]),
    default="daemon",
    help="Who runs it.",
)
@click.option(
    "--write", is_flag=True, help="With --to slurm or k8s: print what it would be given, and end."
)
@click.argument("target", default="")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def submit(
    folder: Path | None,
    as_json: bool,
    schema: bool,
    to: str,
    write: bool,
    target: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> None:
    """Hand in a job: a script with its arguments, or a job's TOML file."""
    if schema:
        sys.exit(_module("stack.cluster.elsewhere").schema())
    if not target:
        raise click.UsageError("name a script, or a job's TOML file")
    given = {key: value for key, value in options.items() if value not in (None, ())}
    if write and to not in ("slurm", "k8s"):
        raise click.UsageError("--write needs --to slurm or --to k8s")
    if to == "daemon":
        _do("submit", folder, target, arguments, given, as_json)
    module = _module("stack.cluster.elsewhere")
    sys.exit(module.submit(target, arguments, given, to, write, as_json))


@click.command()
@_STATE
@_JSON
def jobs(folder: Path | None, as_json: bool) -> None:
    """List the jobs, with the reason of each that waits."""
    _do("jobs", folder, as_json)


@click.command()
@_STATE
@_JSON
@_JOB
def why(folder: Path | None, as_json: bool, job: int) -> None:
    """Say what JOB waits for, or how it ended."""
    _do("why", folder, job, as_json)


@click.command()
@_STATE
@click.option("-f", "--follow", is_flag=True, help="Until it has ended.")
@_JOB
def logs(folder: Path | None, follow: bool, job: int) -> None:
    """Print what JOB has written."""
    _do("logs", folder, job, follow)


@click.command()
@_STATE
@_JOB
def cancel(folder: Path | None, job: int) -> None:
    """End JOB, wherever it stands."""
    _do("change", folder, job, "cancel")


@click.command()
@_STATE
@_JOB
def hold(folder: Path | None, job: int) -> None:
    """Let JOB not start, until `hal release`."""
    _do("change", folder, job, "hold")


@click.command()
@_STATE
@_JOB
def release(folder: Path | None, job: int) -> None:
    """Let JOB start that was held."""
    _do("change", folder, job, "release")


@click.command()
@_STATE
@_JOB
@click.argument("ranks", type=click.IntRange(1))
def resize(folder: Path | None, job: int, ranks: int) -> None:
    """Have JOB go on with fewer RANKS, or with more once there is room."""
    _do("resize", folder, job, ranks)


@click.command()
@_STATE
@_JOB
@click.argument("measured", type=click.FloatRange(0, min_open=True))
def speed(folder: Path | None, job: int, measured: float) -> None:
    """Say how fast JOB is by the option that it has, in the unit of its file."""
    _do("speed", folder, job, measured)


@click.command()
@_STATE
@_JSON
@click.argument("verb", type=click.Choice(["drain", "join", "lose"]), required=False)
@click.argument("name", default="")
def hosts(folder: Path | None, as_json: bool, verb: str | None, name: str) -> None:
    """List the hosts, or change one.

    `drain NAME`: start nothing new there. `join NAME`: use it again. `lose NAME`: it is gone.
    """
    if verb and not name:
        raise click.UsageError(f"{verb} which host?")
    _do("hosts", folder, verb or "", name, as_json)


@click.command()
@click.option("--trace", type=_FILE, help="A file of jobs that were run somewhere.")
@click.option("--format", "shape", default="", help="philly, helios, alibaba2023, alibaba2026.")
@click.option("--load", type=click.Choice(["gangs", "kueue"]), default="gangs", help="No trace.")
@click.option("--seed", default=0, help="Of the load that is generated.")
@click.option("--policy", "policies", multiple=True, help="These alone; by default all.")
@click.option("--hosts", default=0, help="So many hosts, not those that the load means.")
@click.option("--chips", default=8, show_default=True, help="Devices of each kind on such a host.")
@click.option("--save", "save_s", default=0.0, help="Seconds that a job needs to save.")
@click.option("--restore", "restore_s", default=0.0, help="Seconds to start from what it saved.")
@click.option("--resize", "resize_s", default=0.0, help="Seconds to change its size.")
@_JSON
@click.option("--picture", type=_FILE, help="Draw the waiting times, by policy.")
def simulate(save_s: float, restore_s: float, resize_s: float, **options: Any) -> None:
    """Compare policies on a load, in simulated time."""
    costs = import_module("stack.scheduler.simulate").Costs(save_s, restore_s, resize_s)
    sys.exit(import_module("stack.scheduler.command").run(costs=costs, **options))
