"""What the ranks of a group tell each other about their devices."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict

import numpy as np

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.facts import dataclass
from stack.comm.choose.override import PLANS_VARIABLE
from stack.comm.device.memory import is_open
from stack.comm.group import Group


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank's device: its name and plugin, the process that opened it, whether the host sees its
    memory in place (`mapped`) or can copy it at all (`copies`), which groups its plugin makes
    itself, what no other rank or group says (`nonce`), and the user's word on what runs (`plans`),
    of which rank 0's counts."""

    device: str
    plugin: str
    process: int
    mapped: bool
    copies: bool
    groups: bool
    groups_between_processes: bool
    nonce: str
    plans: str


def meet(group: Group, device: Device) -> tuple[Peer, ...]:
    """What each rank says of its device; all ranks call it. Raises what ends the group."""
    features = device.info.features
    own = Peer(
        device.name,
        device.info.plugin,
        os.getpid(),
        is_open(device),
        Feature.MAP in features,
        Feature.COLLECTIVES in features,
        Feature.GROUP_IPC in features,
        secrets.token_hex(8),
        os.environ.get(PLANS_VARIABLE, ""),
    )
    text = np.frombuffer(json.dumps(asdict(own)).encode(), np.uint8)
    counts = group.all_gather(np.array([text.size])).ravel().tolist()
    texts = group.all_gather(text, counts=counts).tobytes()
    ends = np.cumsum(counts).tolist()
    parts = [texts[end - n : end] for end, n in zip(ends, counts, strict=True)]
    return tuple(Peer(**json.loads(part)) for part in parts)
