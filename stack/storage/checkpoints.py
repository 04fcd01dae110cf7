"""Checkpoints of a job: saved by all its ranks, loaded by any number of ranks."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hal.core.facts import dataclass
from stack.storage import copying, parity
from stack.storage.agree import CheckpointLimits, Plans, Shards
from stack.storage.background import Background, Saving
from stack.storage.boxes import TensorShard, lengths_of
from stack.storage.errors import Damaged, Mismatch, NoCheckpoint, StorageError
from stack.storage.layout import DTYPES, FileLayout, code_of
from stack.storage.manifest import COPY, MANIFEST, Manifest, decoded
from stack.storage.memory import Bytes, Scratch, together
from stack.storage.moving import bytes_of, read_blocks, write_blocks
from stack.storage.plan import TransferPlan
from stack.storage.probe import probe
from stack.storage.ranks import StorageRanks, raise_of, text_of
from stack.storage.staging import SaveStaging, staging_of
from stack.storage.steps import Listing, StepFolder
from stack.storage.store import BlobStore, Destination, WriteLease
from stack.storage.stores import opened
from stack.storage.threads import give_way
from stack.storage.verified import Copies

if TYPE_CHECKING:  # the engine's library is loaded by who has a group
    from stack.comm.group import Group

Array = NDArray[Any]
Tensors = Mapping[str, Mapping[str, Array | TensorShard]]
"""By group ("model", "optimizer") and name; a plain array is a whole tensor."""


@dataclass(frozen=True)
class Checkpoint:
    """A step that was loaded: `tensors` by group and name, whole or what was asked for."""

    step: int
    state: Any
    tensors: dict[str, dict[str, Array]]


class Checkpoints:
    """The checkpoints in a place: a folder, or stores, the nearest first, also by their URLs
    ("file:/nvme/run, s3://bucket/run").

    All ranks of `group` make the same calls in the same order. The group is used by these
    checkpoints alone, also while a save goes on in the background. Without one this process is the
    only rank. `keep` newest steps stay in each store; None keeps all. `parity` files of each step
    repair as many damaged blocks (`stack.storage.parity`). A save or load ends within `deadline_s`.
    """

    def __init__(
        self,
        where: str | Path | list[BlobStore],
        group: Group | None = None,
        *,
        keep: int | None = None,
        parity: int = 0,
        limits: CheckpointLimits | None = None,
        deadline_s: float = 600.0,
    ) -> None:
        if keep is not None and keep < 1:
            raise StorageError(f"keep is {keep}; at least the newest step is kept")
        stores = where if isinstance(where, list) else opened(str(where), deadline_s)
        self._stores: list[BlobStore] = stores
        self._ranks = StorageRanks(group)
        self._limits = limits or CheckpointLimits()
        self._plans = Plans(self._ranks, self._limits)
        self._keep, self._parity, self._deadline_s = keep, parity, deadline_s
        self._leases: list[WriteLease] = []
        self._scratch = Scratch()
        self._staging: SaveStaging | None = None
        self._background = Background(deadline_s)
        self.skipped = 0
        """How many saves were skipped since one was under way."""

    def save(
        self,
        step: int,
        tensors: Tensors,
        state: Any = None,
        *,
        background: bool = False,
        staged: bool = True,
        busy: Literal["wait", "skip"] = "wait",
        later: Literal["refuse", "remove"] = "refuse",
    ) -> Saving:
        """Commit a step: tensors, of which each rank gives its parts, and plain data, which is rank
        0's. Older steps stay as they are until the new one is whole.

        In the background this returns when the arrays are copied, and writes meanwhile; with
        `staged=False` it returns at once, and `Saving.wait_staged` comes before any change of an
        array. While another save is under way this waits for it or, with busy="skip", is skipped on
        all ranks and counted. Stores behind the nearest one are filled in the background.

        Where later steps are there, this run went on from an older one or began anew: that is
        refused, or with later="remove" those go once this one is whole. Raises StorageError, also
        for what went wrong in the background since the last call.
        """
        shards = shards_of(tensors)
        if busy == "wait":
            self._background.wait_idle()
        self._background.late.tell()
        saving = Saving(self._background.late, self._deadline_s)
        was_busy = self._background.busy
        if was_busy:
            saving.set_staged()  # one busy rank is enough to skip it, so nothing is copied

        def work() -> None:
            try:
                if busy == "skip" and any(self._ranks.tell(was_busy)):
                    self.skipped += 1
                    saving.done.set_result(False)
                    return
                plan, sources, error = self._staged(shards, background)
                saving.set_staged()
                if background:
                    give_way()
                anew = later == "remove"
                folder, manifest = self._write(step, plan, sources, error, state, anew)
                saving.done.set_result(True)
            except BaseException as error:  # noqa: BLE001  (told by `saving`, or by `late`)
                self._background.late.note(error)  # before anybody can hear of it and forget it
                saving.done.set_exception(error)
                return
            finally:
                saving.set_staged()
            self._to_further(folder, manifest, later == "remove")

        self._background.begin(work)
        if not background:
            saving.wait_committed()
        elif staged:
            saving.wait_staged()
        return saving

    def load(self, wanted: Tensors | None = None, step: int | None = None) -> Checkpoint:
        """Read the newest whole step, or this one, into the arrays of `wanted`; without it every
        rank gets every whole tensor in a new array. Each block is read by one rank alone.

        A group of which nothing is wanted is not read. Where the newest step is damaged beyond
        repair, this warns and loads the one before. Raises NoCheckpoint, Mismatch for other tensors
        than the checkpoint's, Damaged for bytes that no copy has as they were written. After an
        error the arrays of `wanted` may have any values.
        """
        self._background.wait_idle()
        first: Damaged | None = None
        before = None
        while True:
            try:
                folder, manifest, stores = self._found(step, before)
            except NoCheckpoint:
                if first is not None:
                    raise first from None
                raise
            if first is not None:
                text = f"{first}; loading {folder.name}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            try:
                return self._loaded(wanted, folder, manifest, stores)
            except Damaged as error:
                if step is not None:
                    raise
                first, before = error, folder.step

    def _loaded(
        self,
        wanted: Tensors | None,
        folder: StepFolder,
        manifest: Manifest,
        stores: list[BlobStore],
    ) -> Checkpoint:
        error, shards = None, {}
        try:
            asked = _new_arrays(manifest.layout) if wanted is None else shards_of(wanted)
            shards = _checked(asked, manifest, f"{stores[0].where}/{folder.name}")
        except (StorageError, MemoryError) as raised:
            error = raised
        self._ranks.agree(error, "loading")
        plan = self._plans.for_load(shards, manifest.layout)
        arrays = {key: _array(shard) for key, shard in shards.items()}
        copies = Copies(stores, folder, manifest)
        targets = [bytes_of(a) for a in arrays.values()]
        failed = read_blocks(
            plan, self._ranks, targets, copies.read, self._scratch, self._deadline_s
        )
        damages = [
            text
            for text in self._ranks.tell(str(failed) if isinstance(failed, Damaged) else "")
            if text
        ]
        if damages:
            raise Damaged("; ".join(damages))
        self._ranks.agree(failed, f"loading {folder.name}")
        tensors: dict[str, dict[str, Array]] = {}
        for (group, name), array in arrays.items():
            tensors.setdefault(group, {})[name] = array
        return Checkpoint(manifest.step, manifest.state, tensors)

    def steps(self) -> list[int]:
        """The committed steps of all stores, the newest first. Asks the stores."""
        found = {f.step for store in self._stores for f in Listing.of(store).committed}
        return sorted(found, reverse=True)

    def wait_idle(self) -> None:
        """Until no save is under way in any store. Raises what went wrong in the background."""
        self._background.wait_idle()

    def close(self) -> None:
        """Wait, and let others write here. Raises as `wait_idle` does."""
        try:
            self._background.wait_idle()
        finally:
            for lease in self._leases:
                lease.release()
            self._leases.clear()
            for store in self._stores:
                store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _staged(
        self, shards: Shards, copied: bool
    ) -> tuple[TransferPlan, list[Bytes], Exception | None]:
        """The plan of a save and the memory that it takes bytes from: the arrays', or where it is
        `copied`, or comes from a device, that of an arena; and what went wrong on this rank."""
        plan = self._plans.for_save(shards)
        if self._staging is None or self._staging.source is not plan:
            self._staging = staging_of(plan, len(shards))
        staging = self._staging
        try:
            if not copied and not any(callable(s.array) for s in shards.values()):
                return plan, [_contiguous(s) for s in shards.values()], None
            arena = self._scratch.memory("arena", staging.nbytes)
            for i, shard in enumerate(shards.values()):
                if not staging.copies[i]:
                    continue  # other ranks write it
                if callable(shard.array):
                    staging.fetch(arena, i, shard.array)
                else:
                    staging.fill(arena, i, _contiguous(shard))
        except Exception as error:  # noqa: BLE001  (all ranks raise it)
            return plan, [], error
        return staging.plan, [arena], None

    def _write(
        self,
        step: int,
        plan: TransferPlan,
        sources: list[Bytes],
        error: Exception | None,
        state: Any,
        anew: bool,
    ) -> tuple[StepFolder, Manifest]:
        store = self._stores[0]
        sizes = {f.name: f.size for f in plan.layout.files}
        folder = StepFolder(step, 0)

        def begin() -> list[Any]:
            nonlocal folder
            if self._parity:
                parity.check(len(sizes), self._parity)
            folder = self._made_ready(step, anew)
            return [folder.step, folder.attempt, self._tokens(store, folder, sizes)]

        try:
            number, attempt, tokens = self._first(begin, error)
            folder = StepFolder(number, attempt)
            destinations = _destinations(folder, sizes, tokens)
            return folder, self._filled(folder, plan, destinations, sources, state, anew)
        except BaseException:
            if self._ranks.rank == 0:
                with suppress(StorageError):  # the error that is raised says more
                    listing = Listing.of(store)
                    if folder not in listing.committed:  # a rank may be lost right after it
                        store.delete(listing.names(folder))
            raise

    def _made_ready(self, step: int, anew: bool) -> StepFolder:
        """On rank 0: nobody else writes to the stores, which keep their promises, and what former
        saves left is gone. Gives the folder for a step."""
        if not self._leases:
            owner = f"process {os.getpid()} on {socket.gethostname()}"
            for store in self._stores:
                self._leases.append(store.lease(owner))
                probe(store, self._deadline_s)
        for lease in self._leases:
            lease.check()
        attempt = 0
        for store in self._stores:
            listing = Listing.of(store)
            store.delete(listing.left)
            if not anew and listing.committed and listing.committed[0].step > step:
                raise StorageError(
                    f"{store.where} has step {listing.committed[0].step}, which is later than "
                    f"{step}: save to another place, or with later='remove' where that run is "
                    "given up"
                )
            attempts = [f.attempt for f in listing.committed if f.step == step]
            attempt = max([attempt, *(a + 1 for a in attempts)])
        return StepFolder(step, attempt)

    def _filled(
        self,
        folder: StepFolder,
        plan: TransferPlan,
        destinations: dict[str, Destination],
        sources: list[Bytes],
        state: Any,
        anew: bool,
    ) -> Manifest:
        store, layout, ranks = self._stores[0], plan.layout, self._ranks
        wrote = copying.Wrote(destinations)

        def write(block: int, memory: Bytes) -> None:
            file, offset = layout.place(block)
            nbytes = layout.nbytes(block)
            if offset < len(file.header):
                head = file.header[offset : offset + nbytes]
                memory[: len(head)] = np.frombuffer(head, np.uint8)
            wrote.put(store, file.name, offset, memory, nbytes)

        error = write_blocks(plan, ranks, sources, write, self._scratch, self._deadline_s)
        whole = wrote.together(store, ranks, error, layout.block)
        manifest = Manifest(
            folder.step, state, layout, {f.name: whole.checksums[f.name] for f in layout.files}
        )
        if self._parity:
            take = partial(self._taken, store, folder)
            manifest = copying.with_parity(
                store, ranks, folder, manifest, whole, self._parity, take, self._deadline_s
            )
        self._first(lambda: self._commit(store, folder, manifest, whole, anew))
        return manifest

    def _tokens(self, store: BlobStore, folder: StepFolder, sizes: dict[str, int]) -> list[str]:
        return [store.take(folder.file(name), size).token for name, size in sizes.items()]

    def _taken(
        self, store: BlobStore, folder: StepFolder, sizes: dict[str, int]
    ) -> dict[str, Destination]:
        """The space of files, taken by rank 0."""
        tokens = self._first(lambda: self._tokens(store, folder, sizes))
        return _destinations(folder, sizes, tokens)

    def _commit(
        self,
        store: BlobStore,
        folder: StepFolder,
        manifest: Manifest,
        whole: copying.Whole,
        anew: bool,
    ) -> None:
        data = manifest.encoded()
        for lease in self._leases:
            lease.check()
        store.finish(whole.written)
        if manifest.parity is not None:
            store.commit(folder.file(COPY), data)
        if not store.commit(folder.file(MANIFEST), data):
            raise StorageError(
                f"{store.where}/{folder.name} was committed by somebody else meanwhile: two jobs "
                "write here; give each a place of its own"
            )
        listing = Listing.of(store)
        replaced = [f for f in listing.committed if f.step == folder.step and f != folder]
        if anew:
            replaced += [f for f in listing.committed if f.step > folder.step]
        others = [f for f in listing.committed if f not in replaced]
        for gone in (*replaced, *(others[self._keep :] if self._keep else ())):
            store.delete(listing.names(gone)[:1])  # from here on it is no checkpoint
            store.delete(listing.names(gone)[1:])

    def _to_further(self, folder: StepFolder, manifest: Manifest, anew: bool) -> None:
        """Copy a committed step from the nearest store to the others."""
        for store in self._stores[1:]:
            sizes = {f.name: f.size for f in manifest.files}
            copies = Copies(self._stores[:1], folder, manifest)
            wrote = copying.Wrote(self._taken(store, folder, sizes))
            error = copying.copied(copies, store, wrote, self._ranks, self._deadline_s)
            whole = wrote.together(store, self._ranks, error, manifest.layout.block)
            self._first(partial(self._commit, store, folder, manifest, whole, anew))

    def _found(
        self, step: int | None, before: int | None
    ) -> tuple[StepFolder, Manifest, list[BlobStore]]:
        """The step to load, its manifest, and the stores that have it, on all ranks."""
        data = np.empty(0, np.uint8)

        def look() -> list[Any]:
            nonlocal data
            folder, manifest, stores = newest(self._stores, step, before)
            data = np.frombuffer(manifest.encoded(), np.uint8)
            return [folder.step, folder.attempt, [self._stores.index(s) for s in stores]]

        number, attempt, which = self._first(look)
        text = self._ranks.gather(data)[0].tobytes()
        stores = [self._stores[i] for i in which]
        return StepFolder(number, attempt), decoded(text, stores[0].where), stores

    def _first(self, work: Callable[[], Any], error: Exception | None = None) -> Any:
        """What rank 0 makes of it, on all ranks; where it raises, or a rank brings an error, all
        do."""
        value = None
        if self._ranks.rank == 0 and error is None:
            try:
                value = work()
            except Exception as raised:  # noqa: BLE001  (raised on all ranks)
                error = raised
        told = self._ranks.tell([text_of(error), value])
        raise_of(error, [text for text, _ in told], "the work of all")
        return told[0][1]


def _destinations(
    folder: StepFolder, sizes: dict[str, int], tokens: list[str]
) -> dict[str, Destination]:
    return {
        name: Destination(folder.file(name), size, token)
        for (name, size), token in zip(sizes.items(), tokens, strict=True)
    }


def newest(
    stores: list[BlobStore], step: int | None, before: int | None = None
) -> tuple[StepFolder, Manifest, list[BlobStore]]:
    """The newest step (before another one) with a whole manifest, or this step; and who has it, the
    nearest first.

    Warns of newer ones whose manifests are damaged in all stores. Raises NoCheckpoint.
    """
    listings = [Listing.of(store) for store in stores]
    folders = sorted({f for listing in listings for f in listing.committed}, reverse=True)
    causes = []
    asked = [f for f in folders if step in (None, f.step) and (before is None or f.step < before)]
    for folder in asked:
        having = [(s, x) for s, x in zip(stores, listings, strict=True) if folder in x.committed]
        for store, listing in having:
            try:
                manifest = listing.manifest(store, folder)
            except StorageError as error:
                causes.append(str(error))
                continue
            for cause in causes:
                warnings.warn(f"{cause}; loading {folder.name}", RuntimeWarning, stacklevel=2)
            return folder, manifest, [s for s, _ in having]
    where = ", ".join(store.where for store in stores)
    what = "whole checkpoint" if step is None else f"whole checkpoint of step {step}"
    there = ", ".join(str(f.step) for f in folders) or "none"
    raise NoCheckpoint(
        f"there is no {what} in {where} (steps there: {there}){''.join(f'; {c}' for c in causes)}"
    )


def shards_of(tensors: Tensors) -> Shards:
    """All parts by group and name."""
    return {
        (group, name): part if isinstance(part, TensorShard) else TensorShard.whole(part)
        for group, members in tensors.items()
        for name, part in members.items()
    }


def _contiguous(shard: TensorShard) -> Bytes:
    return bytes_of(np.ascontiguousarray(_array(shard)))


def _array(shard: TensorShard) -> Array:
    array = shard.array
    if callable(array):
        raise StorageError("a part that a function reads cannot be loaded into; give an array")
    if (array.shape, array.dtype) != (lengths_of(shard.part), shard.dtype):
        raise StorageError(
            f"a part with {lengths_of(shard.part)} elements of {shard.dtype} is an array of shape "
            f"{array.shape} of {array.dtype}"
        )
    return array


def _new_arrays(layout: FileLayout) -> Shards:
    infos = [info for info, _ in layout.addresses.values()]
    arrays = together([(info.shape, DTYPES[info.dtype]) for info in infos])
    return {i.key: TensorShard.whole(a) for i, a in zip(infos, arrays, strict=True)}


def _checked(shards: Shards, manifest: Manifest, where: str) -> Shards:
    """The parts, if the checkpoint has just these tensors in their groups. Raises Mismatch."""
    addresses = manifest.layout.addresses
    groups = {group for group, _ in shards}
    more = [str(info) for key, (info, _) in addresses.items() if key not in shards]
    more = [text for text in more if text.split("/", 1)[0] in groups]
    lacks = [f"{g}/{n}" for g, n in shards if (g, n) not in addresses]
    other = [
        f"{info} ({info.dtype}{list(info.shape)}, not {code_of(s.dtype)}{list(s.shape)})"
        for key, s in shards.items()
        if (info := addresses[key][0] if key in addresses else None)
        and (info.dtype, info.shape) != (code_of(s.dtype), s.shape)
    ]
    texts = [
        f"{what} {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
        for what, names in (
            ("it lacks", lacks),
            ("it has too much:", more),
            ("it has other shapes or element types for", other),
        )
        if names
    ]
    if texts:
        raise Mismatch(f"{where} is the checkpoint of another model: {'; '.join(texts)}")
    return shards
