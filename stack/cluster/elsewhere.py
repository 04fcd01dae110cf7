"""A job's file, checked, and handed to another queue than our daemon's: Slurm, Kubernetes, Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hal.core.errors import InvalidCall
from stack.cluster import kubernetes, ray, slurm
from stack.cluster.command import say
from stack.cluster.files import JobFile, told
from stack.cluster.given import check_script, wanted


def schema() -> int:
    """Print what a job's file may say, as JSON schema."""
    say(json.dumps(msgspec.json.schema(JobFile), indent=2))
    return 0


def submit(
    target: str,
    arguments: Sequence[str],
    given: Mapping[str, Any],
    to: str,
    write: bool,
    as_json: bool,
) -> int:
    """Hand in the job of a TOML file, or a script with what is given by options; `to` "slurm",
    "k8s" or "ray". With `write` only show what the first two would be given."""
    file = told(wanted(target, arguments, given), JobFile, target)
    if file.options:
        raise InvalidCall("options are for the daemon; another queue takes ranks and kinds")
    if to == "k8s":
        # Hand a job in and follow it until it is over; its name tells which one it is, so that who
        # was cut off follows it again by the same command.
        if not file.name:
            raise InvalidCall(
                "a job for Kubernetes needs a name (--name): by it, it is found again"
            )
        made = kubernetes.manifests(file, file.name)
        if write:
            sys.stdout.write(kubernetes.text_of(made))
            return 0
        api = kubernetes.Kubernetes()
        api.submit(made)
        course = None
        for course in api.follow(made[-1]):
            say(json.dumps({"job": file.name, "why": course.text}) if as_json else course.text)
        return 0 if course is not None and course.well else 1
    if to == "ray":
        return ray.submit(file, say)
    if write:
        sys.stdout.write(slurm.script(file))
        return 0
    check_script(file.folder, file.script, file.module)
    number = slurm.submit(file)
    say(json.dumps({"job": number}) if as_json else f"job {number}")
    return 0
