"""What a group of several hosts knows beside its network: measured times, and the user's word.

Rank 0 reads both, and hands the texts out where the ranks meet: all of them choose by the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from hal.cache import cache_dir
from hal.core.errors import PluginError
from hal.core.facts import dataclass
from stack.comm.choose.measured import (
    Measurement,
    measured_path,
    merged,
    parse_measured,
    read_measured,
    write_measured,
)
from stack.comm.choose.network import Network
from stack.comm.choose.override import PLANS_VARIABLE, Override, parse_override


@dataclass(frozen=True, slots=True)
class AlgorithmChoices:
    """Rows and rules of a `Chooser`."""

    rows: tuple[Measurement, ...] = ()
    rules: tuple[Override, ...] = ()


def path_of(network: Network) -> Path:
    """Where measured times for the network are kept on this host."""
    return measured_path(cache_dir(), network.signature())


def own_rules() -> tuple[Override, ...]:
    """The user's word in this process. Raises PlanError for a wrong text."""
    return parse_override(os.environ.get(PLANS_VARIABLE, ""))


def own_choices(network: Network) -> bytes:
    """What rank 0 hands out. Raises PluginError when the table cannot be read."""
    path = path_of(network)
    try:
        table = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    except OSError as error:
        raise PluginError(f"the table of measured times cannot be read: {error}") from error
    return json.dumps([str(path), table, os.environ.get(PLANS_VARIABLE, "")]).encode()


def choices_in(told: bytes, network: Network) -> AlgorithmChoices:
    """What rank 0 has handed out. Raises PlanError, on all ranks, for texts that are wrong."""
    path, table, plans = json.loads(told)
    rows = parse_measured(table, network.signature(), f"{path} of rank 0") if table else ()
    return AlgorithmChoices(rows, parse_override(plans))


def keep(network: Network, rows: Iterable[Measurement]) -> Path:
    """Add measured times to the table, for the groups that are made from now on; gives its path.

    Raises PlanError for a table that is damaged, OSError where it cannot be written.
    """
    path, signature = path_of(network), network.signature()
    write_measured(path, signature, merged(read_measured(path, signature), rows))
    return path
