"""Blocks of a committed step, each checked against its checksum; a bad one is taken from another
copy or made from parity."""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from hal.core.facts import dataclass
from stack.storage.errors import Damaged, StorageError
from stack.storage.layout import File
from stack.storage.manifest import Manifest
from stack.storage.memory import Bytes, aligned
from stack.storage.parity import restored
from stack.storage.steps import StepFolder
from stack.storage.store import BlobStore


@dataclass(frozen=True)
class Damage:
    """A block that is not what was written: bytes `offset` to `offset + nbytes` of a file."""

    store: str
    file: str
    offset: int
    nbytes: int
    tensors: tuple[str, ...]
    cause: str

    def __str__(self) -> str:
        names = ", ".join(self.tensors[:8]) + (" ..." if len(self.tensors) > 8 else "")
        return (
            f"{self.store}/{self.file}: bytes {self.offset:,} to {self.offset + self.nbytes:,} "
            f"({names}): {self.cause}"
        )


class Copies:
    """The copies of a step, the nearest first: `stores` hold equal files in folders of one name."""

    def __init__(self, stores: Sequence[BlobStore], folder: StepFolder, manifest: Manifest) -> None:
        self.stores = tuple(stores)
        self.folder = folder
        self.manifest = manifest

    def read(self, block: int, out: Bytes) -> None:
        """Fill the memory with a block of the layout, from the first copy that is whole, else from
        parity. Raises Damaged with all that is wrong."""
        self.read_any(*self.manifest.layout.place(block), out)

    def read_any(self, file: File, offset: int, out: Bytes) -> None:
        """As `read`, of any file of the step."""
        damages = []
        for store in self.stores:
            damage = self.damage(store, file, offset, out)
            if damage is None:
                return
            damages.append(damage)
        for store in self.stores:
            if self._from_parity(store, file, offset, out):
                return
        raise Damaged("; ".join(map(str, damages)))

    def damage(self, store: BlobStore, file: File, offset: int, out: Bytes) -> Damage | None:
        """Read a block of a file from one store; gives what is wrong with it."""
        nbytes = min(self.manifest.layout.block, file.size - offset)
        name = self.folder.file(file.name)
        room = out[: -(-nbytes // 4096) * 4096]
        try:
            got = store.read(name, offset, room)
        except FileNotFoundError:
            return self._damage(store, file, offset, nbytes, "the file is gone")
        except StorageError as error:
            return self._damage(store, file, offset, nbytes, str(error))
        if got < nbytes:
            return self._damage(store, file, offset, nbytes, f"{nbytes - got:,} bytes are cut off")
        if crc32c(out[:nbytes].data) != self._checksum(file, offset):
            return self._damage(store, file, offset, nbytes, "the checksum differs")
        return None

    def part(self, store: BlobStore, file: File, offset: int, memory: Bytes) -> Bytes:
        """Fill memory with a block of a file and zeros behind it, or behind the file. Raises
        Damaged."""
        end = max(0, min(self.manifest.layout.block, file.size - offset))
        damage = self.damage(store, file, offset, memory) if end else None
        if damage is not None:
            raise Damaged(str(damage))
        memory[end:] = 0
        return memory

    def _checksum(self, file: File, offset: int) -> int:
        return self.manifest.sums(file)[offset // self.manifest.layout.block]

    def _damage(self, store: BlobStore, file: File, offset: int, nbytes: int, cause: str) -> Damage:
        end = offset + nbytes
        names = tuple(
            str(t)
            for t, start in zip(file.tensors, file.starts, strict=True)
            if start < end and start + t.nbytes > offset
        )
        return Damage(
            store.where, self.folder.file(file.name), offset, nbytes, names or ("no tensor",), cause
        )

    def _from_parity(self, store: BlobStore, file: File, offset: int, out: Bytes) -> bool:
        parity, block = self.manifest.parity, self.manifest.layout.block
        if parity is None:
            return False
        parts: list[Bytes | None] = []
        for other in self.manifest.files:
            try:
                room = aligned(block)
                parts.append(None if other is file else self.part(store, other, offset, room))
            except Damaged:
                parts.append(None)
        made = restored(parts, len(parity.files), self.manifest.files.index(file))
        nbytes = min(block, file.size - offset)
        if made is None or crc32c(made[:nbytes].data) != self._checksum(file, offset):
            return False
        out[:nbytes] = made[:nbytes]
        out[nbytes:] = 0
        return True

    def every(self) -> list[tuple[File, int]]:
        """Every block, those of parity too: its file and offset."""
        step = self.manifest.layout.block
        return [(f, offset) for f in self.manifest.files for offset in range(0, f.size, step)]

    def good(self, store: BlobStore, file: File, offset: int, out: Bytes) -> bool:
        """Fill the memory with what a damaged block of one store should be, from other stores or
        parity; gives whether that was possible."""
        for other in (*(s for s in self.stores if s is not store), store):
            if self.damage(other, file, offset, out) is None:
                out[min(self.manifest.layout.block, file.size - offset) :] = 0
                return True
        return any(self._from_parity(s, file, offset, out) for s in self.stores)
