"""A job on a Ray cluster: a placement group with a bundle for each host, and in each an actor that
runs the host's agent and carries its pipes, so that `hal run` reaches it as by a remote shell.

Ray keeps the queue and starts lost bundles again elsewhere. It takes a group that can never fit and
says nothing: that one is refused here. hal and the script must be on every node."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hal.core.errors import InvalidCall, PluginError
from stack.cluster.files import JobFile
from stack.cluster.given import check_script

NAMESPACE = "hal"
WAIT_S = 60.0
"""How long Ray may take to answer."""
_PIECE_S = 5.0
_NBYTES = 1 << 16
_LONGEST_S = 30 * 86400.0


def submit(job: JobFile, say: Callable[[str], None]) -> int:
    """Run a job on the Ray cluster of RAY_ADDRESS, or the one of this machine, and follow it; gives
    its exit status. It is started again up to `restarts` times, where Ray has room then.

    Raises InvalidCall for one that can never fit or that Ray cannot be told, PluginError where
    there is no Ray."""
    check_script(job.folder, job.script, job.module)
    if job.least not in (0, job.ranks) or job.mixed or job.within:
        raise InvalidCall("leave `least`, `mixed` and `within` to Ray's own groups: it has none")
    per_host = job.per_host or job.ranks
    resource = job.resource or ("CPU" if job.kinds[0] == "cpu" else job.kinds[0])
    hosts = math.ceil(job.ranks / per_host)
    counts = [min(per_host, job.ranks - place * per_host) for place in range(hosts)]
    ray = _connected("auto")
    try:
        _check_room(ray, resource, counts)
        # Run a job in a placement group of its own.
        name = f"{job.name or Path(job.script).stem}-{secrets.token_hex(4)}"
        group = ray.util.placement_group(
            [{resource: count} for count in counts], strategy="STRICT_SPREAD", name=name
        )
        try:
            for start in range(job.restarts + 1):
                _await(group, resource, counts, say)
                if start:
                    _await_answers(ray, group, len(counts))
                status = _run(ray, job, group, name, counts)
                if status == 0:
                    break
            return status
        finally:
            ray.util.remove_placement_group(group)
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    """Ray, with this process as one of its drivers. Raises PluginError."""
    try:
        import ray  # noqa: PLC0415  an extra
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise PluginError("jobs on Ray need it: pip install hal-accel[ray]") from error
    try:
        ray.init(
            address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise PluginError(
            f"no Ray cluster answers here ({error}); start one, or set RAY_ADDRESS"
        ) from error
    return ray


def _check_room(ray: Any, resource: str, counts: list[int]) -> None:
    there = sorted((node["Resources"].get(resource, 0) for node in _nodes(ray)), reverse=True)
    for count, most in zip(counts, [*there, *([0] * len(counts))], strict=False):
        if count > most:
            have = ", ".join(f"{most:g}" for most in there) or "none"
            raise InvalidCall(
                f"the job needs {len(counts)} nodes with {max(counts)} of {resource!r}; the nodes "
                f"of this Ray cluster have: {have}"
            )


def _nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _await(group: Any, resource: str, counts: list[int], say: Callable[[str], None]) -> None:
    """Wait until all bundles are there, and say once that it waits."""
    until_s, waits = time.monotonic() + _LONGEST_S, False
    while not group.wait(timeout_seconds=_PIECE_S):
        if not waits:
            say(f"it waits for {len(counts)} nodes with {max(counts)} of {resource!r} free")
        waits = True
        if time.monotonic() > until_s:
            raise InvalidCall("Ray has had no room for the job for 30 days")


def _await_answers(ray: Any, group: Any, count: int) -> None:
    """Wait until each bundle has answered: that a node is gone, Ray knows some time after the job,
    and until then the group seems to be there."""
    answer = ray.remote(num_cpus=0, max_retries=-1)(_here)
    asked = [
        answer.options(scheduling_strategy=_bundle(ray, group, place)).remote()
        for place in range(count)
    ]
    until_s = time.monotonic() + _LONGEST_S
    while asked:
        asked = ray.wait(asked, num_returns=len(asked), timeout=_PIECE_S)[1]
        if time.monotonic() > until_s:
            raise InvalidCall("Ray has had no room for the job for 30 days")


def _here() -> None:
    """What a node runs to show that it is there."""


def _bundle(ray: Any, group: Any, place: int) -> Any:
    """Where a bundle of a placement group is."""
    return ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, place)


def _run(ray: Any, job: JobFile, group: Any, name: str, counts: list[int]) -> int:
    """`hal run` on the nodes of a placement group; SIGTERM and Ctrl-C reach it."""
    places = ray.util.placement_group_table(group)["bundles_to_node_id"]
    named = {node["NodeID"]: node["NodeManagerHostname"] for node in _nodes(ray)}
    with tempfile.TemporaryDirectory(prefix="hal-ray-") as folder:
        lines = []
        for place, count in enumerate(counts):
            devices = ",".join(f"{job.kinds[0]}:{index}" for index in range(count))
            host = f"{place}@{named.get(places[place], 'lost')}"
            lines.append(f"{host} slots={count} devices={devices}\n")
        Path(folder, "hosts").write_text("".join(lines))
        plan = {"group": name, "address": ray.get_runtime_context().gcs_address}
        Path(folder, "plan").write_text(json.dumps({**plan, "environment": job.environment}))
        shell = [sys.executable, "-m", "stack.cluster.ray", str(Path(folder, "plan")), "{host}"]
        run = [
            sys.executable,
            "-m",
            "hal",
            "run",
            "-n",
            str(job.ranks),
            "--grace",
            f"{job.grace_s:g}",
        ]
        run += ["--shell"]
        run += [shlex.join(shell).replace("'{host}'", "{host}")]
        run += ["--address", ray.util.get_node_ip_address(), "--hosts", str(Path(folder, "hosts"))]
        run += [*(["-m"] if job.module else []), job.script, *job.arguments]
        launcher = subprocess.Popen(
            run, cwd=job.folder, env={**os.environ, **job.environment}, stdin=subprocess.DEVNULL
        )
        before = signal.signal(signal.SIGTERM, lambda *_: launcher.terminate())
        try:
            # once it has ended; Ctrl-C reaches it, too, and it ends in its own time
            until_s = time.monotonic() + _LONGEST_S
            while time.monotonic() < until_s:
                with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    return launcher.wait(WAIT_S)
            launcher.kill()
            return launcher.wait(WAIT_S)
        finally:
            signal.signal(signal.SIGTERM, before)


class Pipes:
    """An actor: a command on the node where it is, with its pipes for who is elsewhere. The command
    ends by itself when its input does, as it does with the actor."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["sh", "-c", command],
            env={**os.environ, **environment},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )

    def write(self, data: bytes) -> None:
        """Give it input; b"" ends it."""
        assert self._process.stdin is not None, "it was asked for"
        with contextlib.suppress(BrokenPipeError):
            if data:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            else:
                self._process.stdin.close()

    def read(self, which: str, seconds: float) -> bytes | None:
        """What it has written, b"" at its end; None where there was nothing for so long."""
        stream: BinaryIO = getattr(self._process, which)
        if not select.select([stream], [], [], seconds)[0]:
            return None
        return os.read(stream.fileno(), _NBYTES)

    def wait(self, seconds: float) -> int:
        """Its status, as a shell gives it. Raises TimeoutExpired."""
        status = self._process.wait(seconds)
        return 128 - status if status < 0 else status


def carry(plan: Mapping[str, Any], place: int, command: str) -> int:
    """Run a command in a bundle of the plan's placement group, with this process' own pipes for its
    own; gives its exit status. Raises PluginError where Ray or the node is gone."""
    answers = os.dup(1)
    os.dup2(2, 1)  # where Ray writes of its own
    ray = _connected(plan["address"])
    strategy = _bundle(ray, ray.util.get_placement_group(plan["group"]), place)
    actor = (
        ray.remote(num_cpus=0, max_concurrency=4)(Pipes)
        .options(scheduling_strategy=strategy)
        .remote(command, plan["environment"])
    )

    def forward(which: str, to: int) -> None:
        while (piece := _answer(ray, actor.read.remote(which, _PIECE_S))) != b"":
            if piece:
                os.write(to, piece)

    def feed() -> None:
        data = b"some"
        while data:
            if select.select([0], [], [], _PIECE_S)[0]:
                data = os.read(0, _NBYTES)
                _answer(ray, actor.write.remote(data))

    threading.Thread(target=feed, daemon=True).start()
    errors = threading.Thread(target=forward, args=["stderr", 2], daemon=True)
    errors.start()
    forward("stdout", answers)
    errors.join(WAIT_S)
    status = _answer(ray, actor.wait.remote(WAIT_S))
    assert isinstance(status, int), "it says so"
    return status


def _answer(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=WAIT_S)
    except ray.exceptions.RayError as error:
        raise PluginError(f"the node is gone, or Ray is: {type(error).__name__}") from error


if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text())
    try:
        sys.exit(carry(found, int(sys.argv[2].partition("@")[0]), " ".join(sys.argv[3:])))
    except PluginError as error:
        sys.exit(f"ray: {error}")
