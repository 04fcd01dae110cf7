"""Look at every byte of a committed step, and put back what is not as it was written."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.facts import dataclass
from stack.storage.errors import NoCheckpoint, StorageError
from stack.storage.layout import File
from stack.storage.manifest import COPY, MANIFEST, Manifest, decoded
from stack.storage.memory import aligned
from stack.storage.steps import Listing, StepFolder
from stack.storage.store import BlobStore, Destination, whole_file
from stack.storage.verified import Copies, Damage


@dataclass(frozen=True)
class StepReport:
    """What is wrong with a step: `damages` in all its stores; those of `lost` stay."""

    folder: StepFolder
    damages: tuple[Damage, ...]
    lost: tuple[Damage, ...] = ()


@dataclass(frozen=True)
class _StoredStep:
    """A committed step as it stands in several stores."""

    folder: StepFolder
    manifest: Manifest
    data: bytes
    copies: Copies
    listings: dict[str, Listing]


def verify(stores: Sequence[BlobStore], folder: StepFolder) -> StepReport:
    """Read everything of a step, in each store that has it. Raises NoCheckpoint without a whole
    manifest."""
    step = _step(stores, folder)
    damages = [*_manifests(step), *(d for _, _, d in _blocks(step))]
    return StepReport(folder, tuple(damages))


def repair(stores: Sequence[BlobStore], folder: StepFolder) -> StepReport:
    """Write damaged blocks anew, from other stores or from parity. What cannot be repaired stays as
    it is. Raises NoCheckpoint without a whole manifest."""
    step = _step(stores, folder)
    damages = _manifests(step)
    by_name = {store.where: store for store in step.copies.stores}
    for damage in damages:
        by_name[damage.store].commit(damage.file, step.data, replace=True)
    lost: list[Damage] = []
    bad: dict[tuple[str, str], list[int]] = {}
    found = _blocks(step)
    room = aligned(step.manifest.layout.block)
    for store, file, damage in found:
        if step.copies.good(store, file, damage.offset, room):
            bad.setdefault((store.where, file.name), []).append(damage.offset)
        else:
            lost.append(damage)
    files = {file.name: file for file in step.manifest.files}
    hopeless = {(d.store, d.file) for d in lost}
    for (where, name), offsets in bad.items():
        there = by_name[where].in_place and name in step.listings[where].folders[folder]
        if there or (where, folder.file(name)) not in hopeless:
            _put_anew(step, by_name[where], files[name], offsets if there else None)
    return StepReport(folder, (*damages, *(d for _, _, d in found)), tuple(lost))


def _step(stores: Sequence[BlobStore], folder: StepFolder) -> _StoredStep:
    listings = {store.where: Listing.of(store) for store in stores}
    having = [s for s in stores if folder in listings[s.where].committed]
    causes = []
    for store in having:
        for name in (MANIFEST, COPY):
            size = listings[store.where].folders[folder].get(name, 0)
            try:
                data = whole_file(store, folder.file(name), size)
                manifest = decoded(data, f"{store.where}/{folder.file(name)}")
            except (FileNotFoundError, StorageError) as error:
                causes.append(str(error))
                continue
            return _StoredStep(folder, manifest, data, Copies(having, folder, manifest), listings)
    raise NoCheckpoint(
        f"{folder.name} has no whole manifest in {', '.join(s.where for s in stores)}: "
        f"{'; '.join(causes) or 'it is not there'}"
    )


def _manifests(step: _StoredStep) -> list[Damage]:
    names = (MANIFEST, COPY) if step.manifest.parity else (MANIFEST,)
    damages = []
    for store in step.copies.stores:
        for name in names:
            size = step.listings[store.where].folders[step.folder].get(name, 0)
            file = step.folder.file(name)
            try:
                same = size == len(step.data) and whole_file(store, file, size) == step.data
            except FileNotFoundError:
                same = False
            if not same:
                damages.append(
                    Damage(store.where, file, 0, size, ("the manifest",), "it is not as written")
                )
    return damages


def _blocks(step: _StoredStep) -> list[tuple[BlobStore, File, Damage]]:
    room = aligned(step.manifest.layout.block)
    found = []
    for store in step.copies.stores:
        for file, offset in step.copies.every():
            damage = step.copies.damage(store, file, offset, room)
            if damage is not None:
                found.append((store, file, damage))
        found += [(store, file, damage) for file, damage in _too_long(step, store)]
    return found


def _too_long(step: _StoredStep, store: BlobStore) -> list[tuple[File, Damage]]:
    """Files with more bytes than were written; their last blocks are put anew."""
    sizes = step.listings[store.where].folders[step.folder]
    block = step.manifest.layout.block
    return [
        (
            file,
            Damage(
                store.where,
                step.folder.file(file.name),
                (file.size - 1) // block * block,
                block,
                ("no tensor",),
                f"{sizes[file.name] - file.size:,} bytes are too much",
            ),
        )
        for file in step.manifest.files
        if sizes.get(file.name, 0) > file.size
    ]


def _put_anew(step: _StoredStep, store: BlobStore, file: File, offsets: list[int] | None) -> None:
    """Put blocks into a file that is there, or all of a new one."""
    name, block = step.folder.file(file.name), step.manifest.layout.block
    destination = store.take(name, file.size) if offsets is None else Destination(name, file.size)
    room, receipts = aligned(block), {}
    for offset in range(0, file.size, block) if offsets is None else sorted(set(offsets)):
        step.copies.good(store, file, offset, room)
        receipts[offset] = store.put(destination, offset, room, min(block, file.size - offset))
    store.sync()
    store.finish({destination: receipts})
