"""What `hal checkpoint` does: looks at steps, verifies and repairs them, and moves them."""

from __future__ import annotations

import json
import os
import socket
import sys
from importlib import import_module
from typing import Any

from stack.storage.checkpoints import Checkpoints, newest
from stack.storage.errors import NoCheckpoint, StorageError
from stack.storage.repair import repair, verify
from stack.storage.steps import Listing, StepFolder
from stack.storage.store import BlobStore
from stack.storage.stores import opened

DEADLINE_S = 600.0
"""A call to a store ends within it."""


def show_list(where: str, as_json: bool) -> int:
    """Print every committed step, and what unfinished saves have left."""
    stores = opened(where, DEADLINE_S)
    rows = []
    for store in stores:
        listing = Listing.of(store)
        for folder in listing.committed:
            row: dict[str, Any] = {"store": store.where, "step": folder.step, "folder": folder.name}
            try:
                manifest = listing.manifest(store, folder)
                row |= {"tensors": len(manifest.layout.addresses), "nbytes": manifest.nbytes}
            except StorageError as error:
                row |= {"error": str(error)}
            rows.append(row)
        if listing.left:
            rows.append({"store": store.where, "left": listing.left})
    if as_json:
        _say(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        if "left" in row:
            _say(f"{row['store']}: {len(row['left'])} files of unfinished saves")
        else:
            what = row.get("error") or f"{row['tensors']:,} tensors, {row['nbytes']:,} bytes"
            _say(f"{row['store']}/{row['folder']}: step {row['step']}: {what}")
    if not rows:
        _say(f"there is no checkpoint in {where}")
    return 0


def show(where: str, step: int | None, as_json: bool) -> int:
    """Print what a step holds."""
    folder, manifest, stores = newest(opened(where, DEADLINE_S), step)
    tensors = [
        {"group": t.group, "name": t.name, "dtype": t.dtype, "shape": list(t.shape), "file": f.name}
        for f in manifest.layout.files
        for t in f.tensors
    ]
    if as_json:
        facts = {"step": manifest.step, "state": manifest.state, "tensors": tensors}
        _say(json.dumps(facts, indent=2))
        return 0
    _say(f"{stores[0].where}/{folder.name}: step {manifest.step}, {manifest.nbytes:,} bytes")
    for t in tensors:
        _say(f"  {t['group']}/{t['name']}: {t['dtype']}{t['shape']} in {t['file']}")
    _say(f"state: {json.dumps(manifest.state)[:2000]}")
    return 0


def check(where: str, step: int | None, mend: bool) -> int:
    """Verify or repair a step, or all; gives 1 if something stays damaged."""
    stores = opened(where, DEADLINE_S)
    leases = [store.lease(_owner()) for store in stores] if mend else []
    try:
        found = [(repair if mend else verify)(stores, folder) for folder in _folders(stores, step)]
    finally:
        for lease in leases:
            lease.release()
    for each in found:
        for damage in each.damages:
            left = damage in each.lost
            _say(f"{damage}{(' - LOST' if left else ' - repaired') if mend else ''}")
        if not each.damages:
            _say(f"{each.folder.name}: every byte is as it was written")
    return int(any(each.lost if mend else each.damages for each in found))


def _folders(stores: list[BlobStore], step: int | None) -> list[StepFolder]:
    found = sorted({f for store in stores for f in Listing.of(store).committed}, reverse=True)
    chosen = [f for f in found if step in (None, f.step)]
    if not chosen:
        there = ", ".join(str(f.step) for f in found) or "none"
        raise NoCheckpoint(f"there is no such step in {stores[0].where} (steps there: {there})")
    return chosen


def prune(where: str, keep: int) -> int:
    """Remove all but the newest steps, and what unfinished saves have left."""
    for store in opened(where, DEADLINE_S):
        lease = store.lease(_owner())
        try:
            listing = Listing.of(store)
            store.delete(listing.left)
            for folder in listing.committed[keep:]:
                names = listing.names(folder)
                store.delete(names[:1])  # from here on it is no checkpoint
                store.delete(names[1:])
                _say(f"removed {store.where}/{folder.name}")
        finally:
            lease.release()
    return 0


def export_dcp(where: str, folder: str, step: int | None) -> int:
    """Write a step as a DCP folder."""
    with Checkpoints(where) as checkpoints:
        loaded = checkpoints.load(step=step)
    _dcp().write(folder, loaded.tensors, loaded.state)
    _say(f"step {loaded.step} is written to {folder}")
    return 0


def import_dcp(folder: str, where: str, step: int) -> int:
    """Commit what a DCP folder holds as a step."""
    tensors, state = _dcp().read(folder)
    with Checkpoints(where) as checkpoints:
        checkpoints.save(step, tensors, state)
    _say(f"step {step} is committed in {where}")
    return 0


def _dcp() -> Any:
    try:
        return import_module("stack.storage.dcp")
    except ImportError as error:
        raise StorageError(f"DCP folders need torch: {error}; pip install torch") from error


def _owner() -> str:
    return f"`hal checkpoint` (process {os.getpid()} on {socket.gethostname()})"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
