"""Blocks of files that all ranks write together: what each has written, put together on all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from crc32c import crc32c

from hal.core.facts import dataclass
from stack.storage import parity
from stack.storage.layout import File, rounded
from stack.storage.manifest import Manifest, Parity
from stack.storage.memory import Bytes, aligned
from stack.storage.ranks import StorageRanks, raise_of, text_of
from stack.storage.steps import StepFolder
from stack.storage.store import BlobStore, Destination
from stack.storage.threads import Threads
from stack.storage.verified import Copies

_THREADS = 3


@dataclass
class Whole:
    """All blocks of files: checksums by file and block, receipts by destination and offset."""

    checksums: dict[str, list[int]]
    written: dict[Destination, dict[int, str]]


class Wrote:
    """What one rank has written."""

    def __init__(self, destinations: dict[str, Destination]) -> None:
        self._destinations = destinations
        self._blocks: list[tuple[str, int, int, str]] = []

    def put(self, store: BlobStore, file: str, offset: int, memory: Bytes, nbytes: int) -> None:
        """Write a block, with zeros behind it. May be called by several threads."""
        if nbytes < len(memory):
            memory[nbytes : rounded(nbytes)] = 0
        checksum = crc32c(memory[:nbytes].data)
        receipt = store.put(self._destinations[file], offset, memory, nbytes)
        self._blocks.append((file, offset, checksum, receipt))

    def together(
        self, store: BlobStore, ranks: StorageRanks, error: Exception | None, block: int
    ) -> Whole:
        """What all ranks have written, which lasts now. Raises on all what one brings."""
        if error is None:
            try:
                store.sync()
            except Exception as raised:  # noqa: BLE001  (raised on all ranks)
                error = raised
        told = ranks.tell([text_of(error), [] if error else self._blocks])
        raise_of(error, [text for text, _ in told], f"writing to {store.where}")
        sums = {n: [0] * -(-p.size // block) for n, p in self._destinations.items()}
        written: dict[Destination, dict[int, str]] = {p: {} for p in self._destinations.values()}
        for _, rows in told:
            for file, offset, checksum, receipt in rows:
                sums[file][offset // block] = checksum
                written[self._destinations[file]][offset] = receipt
        return Whole(sums, written)


def with_parity(
    store: BlobStore,
    ranks: StorageRanks,
    folder: StepFolder,
    manifest: Manifest,
    whole: Whole,
    count: int,
    take: Callable[[dict[str, int]], dict[str, Destination]],
    deadline_s: float,
) -> Manifest:
    """Write `count` parity files for files that are written, block by block in turns of the ranks;
    gives the manifest that names them. What it reads back is verified."""
    layout = manifest.layout
    size = max(f.size for f in layout.files)
    size = min(-(-size // layout.block) * layout.block, -(-size // 4096) * 4096)
    files = tuple(File(f"parity-{i}.bin", b"", (), (), size) for i in range(count))
    destinations = take({f.name: f.size for f in files})
    wrote = Wrote(destinations)
    copies = Copies([store], folder, manifest)
    offsets = list(range(0, size, layout.block))[ranks.rank :: ranks.size]

    def some(first: int) -> None:
        memory = [aligned(layout.block) for _ in range(len(layout.files) + 1)]
        for offset in offsets[first::_THREADS]:
            pairs = zip(layout.files, memory, strict=False)
            parts = [copies.part(store, file, offset, room) for file, room in pairs]
            nbytes = min(layout.block, size - offset)
            for file, made in zip(files, parity.encoded(parts, count), strict=True):
                memory[-1][:nbytes] = made[:nbytes]
                wrote.put(store, file.name, offset, memory[-1], nbytes)

    error = _by_threads(some, deadline_s)
    more = wrote.together(store, ranks, error, layout.block)
    whole.written.update(more.written)
    return replace(manifest, parity=Parity(files, more.checksums))


def copied(
    copies: Copies, store: BlobStore, wrote: Wrote, ranks: StorageRanks, deadline_s: float
) -> Exception | None:
    """Copy every block of a step to another store, in turns of the ranks; gives the first error."""
    block = copies.manifest.layout.block
    mine = copies.every()[ranks.rank :: ranks.size]

    def some(first: int) -> None:
        memory = aligned(block)
        for file, offset in mine[first::_THREADS]:
            copies.read_any(file, offset, memory)
            wrote.put(store, file.name, offset, memory, min(block, file.size - offset))

    return _by_threads(some, deadline_s)


def _by_threads(some: Callable[[int], None], deadline_s: float) -> Exception | None:
    """Call it with each number of a thread, on that thread; gives the first error."""
    with Threads(_THREADS) as threads:
        begun = [threads.give(partial(some, i)) for i in range(_THREADS)]
        errors = [future.exception(deadline_s) for future in begun]
    return next((error for error in errors if isinstance(error, Exception)), None)
