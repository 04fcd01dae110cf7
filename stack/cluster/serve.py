"""Starting the daemon of a cluster: `hal cluster start`, in front or in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hal.core.errors import InvalidCall
from stack.cluster import slurm
from stack.cluster.command import say
from stack.cluster.daemon import Daemon
from stack.cluster.files import ClusterFile, read
from stack.scheduler.spec import SpecError

START_S = 20.0


def start(
    folder: Path, config: Path | None, port: int | None, background: bool, in_slurm: bool
) -> int:
    """Run a daemon; in the background, until it answers. Gives the exit status. With `in_slurm` its
    hosts are those of the allocation that it runs in."""
    if background:
        return _start_apart(folder, config, port, in_slurm)
    try:
        file = read(config, ClusterFile) if config else ClusterFile()
        if in_slurm:
            daemon = Daemon(folder.absolute(), slurm.allocated(file), port, slurm.lost)
        else:
            daemon = Daemon(folder.absolute(), file, port)
    except SpecError as error:
        raise InvalidCall(str(error)) from error
    say(f"the cluster in {folder} is up" + (f"; its page: {daemon.page}" if daemon.page else ""))
    daemon.run()
    return 0


def _start_apart(folder: Path, config: Path | None, port: int | None, in_slurm: bool) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = [*(["--config", str(config)] if config else [])]
    options += ["--page", str(port)] if port is not None else []
    options += ["--slurm"] if in_slurm else []
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(folder / "daemon.log", flags, 0o600), "ab") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "stack.cluster.serve", str(folder.absolute()), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until_s = time.monotonic() + START_S
    while daemon.poll() is None and time.monotonic() < until_s:
        said = (folder / "daemon.log").read_text()
        if " is up" in said:
            say(said.rstrip())
            return 0
        time.sleep(0.02)
    said = (folder / "daemon.log").read_text()
    sys.stderr.write(said)
    if daemon.poll() is not None and not said:
        sys.stderr.write(
            f"the daemon ended with {daemon.returncode} and wrote nothing into {folder}: is its "
            "disk full? `hal cluster start` without --background says why\n"
        )
    if daemon.poll() is None:
        daemon.terminate()
        sys.stderr.write(f"the daemon did not answer within {START_S:g} s\n")
    return 1


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--page", type=int)
    parser.add_argument("--slurm", action="store_true")
    asked = parser.parse_args()
    try:
        sys.exit(
            start(asked.folder, asked.config, asked.page, background=False, in_slurm=asked.slurm)
        )
    except InvalidCall as error:
        sys.exit(f"error: {error}")
