"""A store: where files of named bytes lie. Names are "FOLDER/FILE", relative to the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from hal.core.facts import dataclass
from stack.storage.memory import Bytes, aligned

NEW = ".new"
"""How the name ends of a file that waits for its commit; what a crash leaves of it is removed."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A file that is being written. `token` is what other ranks need to write into it, too."""

    name: str
    size: int
    token: str = ""


Written = Mapping[Destination, Mapping[int, str]]
"""For each file the receipts of its blocks, by offset."""


class WriteLease(ABC):
    """The right to write to a store, until it is released or its holder is gone."""

    @abstractmethod
    def check(self) -> None:
        """Raises Occupied when it is lost."""

    @abstractmethod
    def release(self) -> None:
        """Give it up."""


class BlobStore(ABC):
    """What checkpoints need of a place. Every call ends within the store's deadline, and raises
    StorageError with what, where and what to do. Calls may come from several threads."""

    where: str
    """How it is called in messages: its URL."""
    in_place: bool
    """Whether blocks can be put into a file that is whole; else files are put anew as a whole."""

    @abstractmethod
    def take(self, name: str, size: int) -> Destination:
        """Take the space of a new file of `size` bytes, of which nothing is written yet."""

    @abstractmethod
    def put(self, destination: Destination, offset: int, data: Bytes, nbytes: int) -> str:
        """Write the first `nbytes` of `data` at a block's offset; gives a receipt. `data` is
        aligned memory, zero from there to a multiple of 4096 bytes."""

    @abstractmethod
    def sync(self) -> None:
        """Make what was put through this object last through a power cut."""

    @abstractmethod
    def finish(self, written: Written) -> None:
        """Make files of the blocks that all ranks have put; they last when this returns. One rank
        calls it, after all have called `sync`."""

    @abstractmethod
    def commit(self, name: str, data: bytes, replace: bool = False) -> bool:
        """Make a small file appear, whole and lasting. Gives False, and changes nothing, when it is
        there already; of several at a time one wins. With `replace` it takes the place of one that
        is there."""

    @abstractmethod
    def read(self, name: str, offset: int, out: Bytes) -> int:
        """Read into aligned memory, from a multiple of 4096 on; gives the number of bytes, fewer
        than `out` has at the file's end. Raises FileNotFoundError."""

    @abstractmethod
    def list(self, prefix: str = "") -> dict[str, int]:
        """The sizes of all files whose names begin so; an empty folder is "NAME/"."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove files, lastingly; those that are not there are no error."""

    @abstractmethod
    def lease(self, owner: str) -> WriteLease:
        """Become the one that writes. Raises Occupied with the name of who does already."""

    @abstractmethod
    def close(self) -> None:
        """Give up what this object holds open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def whole_file(store: BlobStore, name: str, nbytes: int) -> bytes:
    """The bytes of a file that is known to have `nbytes`; fewer if it has. Raises
    FileNotFoundError."""
    out = aligned(nbytes)
    return out[: store.read(name, 0, out)].tobytes()[:nbytes]
