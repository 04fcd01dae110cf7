"""A store that is a folder of this machine, or of a file system that it has mounted."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stack.storage.disk import Disk, takes_direct
from stack.storage.errors import Occupied, StorageError
from stack.storage.layout import ALIGN, BLOCK, rounded
from stack.storage.memory import Bytes, padded
from stack.storage.store import NEW, BlobStore, Destination, WriteLease, Written

SPARE = ".spare"
"""Where files of expired steps wait to be written over: that is faster than taking new blocks."""
LEASE = ".lease"


class Folder(BlobStore):
    """Files below `root`, which is made if it is not there. Files of expired steps with at least
    `spare_from` bytes are kept to be written over, as many as a step has."""

    in_place = True

    def __init__(self, root: str | Path, disk: Disk | None = None, spare_from: int = BLOCK) -> None:
        self._root = Path(root).absolute()
        self.where = f"file:{self._root}"
        with self._told("make the folder"):
            self._root.mkdir(parents=True, exist_ok=True)
            self._disk = Disk(takes_direct(self._root)) if disk is None else disk
        self._lock = threading.Lock()
        self._writing: dict[str, int] = {}
        self._spare_from = spare_from  # smaller files are not worth the trouble
        self._taken = 0
        self._spare_nbytes = 0  # no more is kept to be written over than a step has

    def take(self, name: str, size: int) -> Destination:
        path, space = self._path(name), rounded(size)
        self._taken += space
        with self._told(f"take {size:,} bytes for {name}", size):
            self._disk.make_folder(path.parent)
            # The spare file whose size is nearest.
            if space < self._spare_from:
                spare = None
            else:
                found = [(abs(p.stat().st_size - space), p) for p in (self._root / SPARE).glob("*")]
                spare = min(found)[1] if found else None
            if spare is None:
                handle = self._disk.create(path)
            else:
                self._disk.rename(spare, path)
                handle = self._disk.open(path)
            try:
                if spare is not None:
                    self._disk.truncate(handle, min(space, os.fstat(handle).st_size))
                if space:
                    self._disk.allocate(handle, space)
            finally:
                os.close(handle)
        return Destination(name, size)

    def put(self, destination: Destination, offset: int, data: Bytes, nbytes: int) -> str:
        with self._told(f"write {destination.name} at byte {offset:,}", nbytes):
            handle = self._handle(destination.name)
            self._disk.write(handle, data[: rounded(nbytes)], offset)
            if offset + nbytes == destination.size:
                self._disk.truncate(handle, destination.size)
        return ""

    def _handle(self, name: str) -> int:
        with self._lock:
            if name not in self._writing:
                self._writing[name] = self._disk.open(self._path(name))
            return self._writing[name]

    def sync(self) -> None:
        with self._lock:
            for name in list(self._writing):
                handle = self._writing.pop(name)
                try:
                    with self._told(f"make {name} last"):
                        self._disk.sync(handle)
                finally:
                    os.close(handle)

    def finish(self, written: Written) -> None:
        with self._told("make the files last"):
            for folder in {self._path(destination.name).parent for destination in written}:
                self._disk.sync_folder(folder)
            self._disk.sync_folder(self._root)
        self._spare_nbytes, self._taken = self._taken, 0

    def commit(self, name: str, data: bytes, replace: bool = False) -> bool:
        path = self._path(name)
        new = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{NEW}")
        with self._told(f"commit {name}", len(data)):
            self._disk.make_folder(path.parent)
            self._disk.remove(new)
            handle = self._disk.create(new)
            try:
                self._disk.write(handle, padded(data), 0)
                self._disk.truncate(handle, len(data))
                self._disk.sync(handle)
            finally:
                os.close(handle)
            if replace:
                self._disk.rename(new, path)
            else:
                try:
                    self._disk.link(new, path)
                except FileExistsError:
                    return False
                finally:
                    self._disk.remove(new)
            self._disk.sync_folder(path.parent)
        return True

    def read(self, name: str, offset: int, out: Bytes) -> int:
        path = self._path(name)
        with self._told(f"read {name} at byte {offset:,}"):
            handle = os.open(path, os.O_RDONLY | self._disk.flags)
            try:
                at = 0
                while at < len(out):
                    got = os.preadv(handle, [out[at:].data], offset + at)
                    at += got
                    if not got or at % ALIGN:  # the end; direct I/O goes on at aligned bytes alone
                        break
            finally:
                os.close(handle)
        return at

    def list(self, prefix: str = "") -> dict[str, int]:
        found = {}
        with self._told("list files"):
            for folder, folders, files in os.walk(self._root):
                folders[:] = [f for f in folders if not f.startswith(".")]
                at = Path(folder).relative_to(self._root)
                if not (folders or files) and str(at).startswith(prefix):
                    found[f"{at}/"] = 0  # an empty folder
                for file in files:
                    name = str(at / file)
                    if name.startswith(prefix) and not file.startswith("."):
                        with suppress(FileNotFoundError):  # another rank has deleted it meanwhile
                            found[name] = (Path(folder) / file).stat().st_size
        return found

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        with self._told("remove files"):
            for path in paths:
                if path.is_dir():
                    self._disk.remove_folder(path)
                elif not self._kept_as_spare(path):
                    self._disk.remove(path)
            for folder in {path.parent for path in paths} - {self._root}:
                if folder.is_dir():
                    self._disk.sync_folder(folder)
                self._disk.remove_folder(folder)

    def _kept_as_spare(self, path: Path) -> bool:
        spare = self._root / SPARE
        if (
            path.suffix != ".safetensors"
            or not path.is_file()
            or path.stat().st_size < self._spare_from
        ):
            return False
        self._disk.make_folder(spare)
        held = sum(p.stat().st_size for p in spare.glob("*"))
        if held + path.stat().st_size > self._spare_nbytes:
            return False
        self._disk.rename(path, spare / f"{path.parent.name}-{path.name}")
        return True

    def lease(self, owner: str) -> WriteLease:
        return _FolderLease(self, self._root / LEASE, owner)

    def close(self) -> None:
        with self._lock:
            for handle in self._writing.values():
                os.close(handle)
            self._writing.clear()

    def _path(self, name: str) -> Path:
        return self._root / name

    @contextmanager
    def _told(self, what: str, nbytes: int = 0) -> Iterator[None]:
        """Turn an error of the system into a sentence that says what to do."""
        try:
            yield
        except (FileExistsError, FileNotFoundError) as error:
            if what.startswith("read "):
                raise
            raise StorageError(
                f"cannot {what} in {self.where}: {error.strerror}; was the folder taken away or "
                "changed meanwhile?"
            ) from error
        except OSError as error:
            raise StorageError(
                f"cannot {what} in {self.where}: {error.strerror}; {self._advice(error, nbytes)}"
            ) from error

    def _advice(self, error: OSError, nbytes: int) -> str:
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(self._root).free
            return f"{free:,} bytes are free, {nbytes:,} needed: make space, or keep fewer steps"
        if error.errno == errno.EDQUOT:
            return "your quota is used up: remove files, or ask for more"
        if error.errno == errno.EROFS:
            return "the file system is read-only: save elsewhere, or mount it for writing"
        if error.errno in (errno.EACCES, errno.EPERM):
            return "this user may not: change the permissions, or save elsewhere"
        return "look at the disk's own messages (`dmesg`), or save elsewhere"


class _FolderLease(WriteLease):
    """A lock of the operating system, which ends with the process that holds it."""

    def __init__(self, folder: Folder, path: Path, owner: str) -> None:
        with folder._told("take the lease"):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._handle, 4096, 0).decode(errors="replace")
                os.close(self._handle)
                raise Occupied(
                    f"{folder.where} is written by another job, {holder}: end that one, or save "
                    "to another folder"
                ) from None
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, owner.encode(), 0)

    def check(self) -> None:
        return

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
