"""The steps in a store: which are committed, and what their manifests say."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hal.core.facts import dataclass
from stack.storage.errors import Damaged, StorageError
from stack.storage.manifest import COPY, MANIFEST, Manifest, decoded
from stack.storage.store import NEW, BlobStore, whole_file

_FOLDER = re.compile(r"step-(\d{12,})(?:\.(\d+))?\Z")


@dataclass(frozen=True, slots=True, order=True)
class StepFolder:
    """A step's folder in a store; a step that is saved again has a next attempt."""

    step: int
    attempt: int

    @property
    def name(self) -> str:
        """How it is called."""
        return f"step-{self.step:012}" + (f".{self.attempt}" if self.attempt else "")

    def file(self, name: str) -> str:
        """The name of one of its files in the store."""
        return f"{self.name}/{name}"


@dataclass(frozen=True)
class Listing:
    """What a store holds: the files of each step's folder with their sizes."""

    folders: Mapping[StepFolder, Mapping[str, int]]

    @classmethod
    def of(cls, store: BlobStore) -> Listing:
        """Look."""
        folders: dict[StepFolder, dict[str, int]] = {}
        for name, size in store.list("step-").items():
            folder, _, file = name.partition("/")
            found = _FOLDER.match(folder)
            if found:
                key = StepFolder(int(found[1]), int(found[2] or 0))
                folders.setdefault(key, {})[file] = size
        return cls(folders)

    @property
    def committed(self) -> list[StepFolder]:
        """The committed ones, the newest first; their manifests may be damaged."""
        return sorted((f for f, files in self.folders.items() if MANIFEST in files), reverse=True)

    @property
    def left(self) -> list[str]:
        """The files that saves which did not come to an end have left."""
        return [
            folder.file(file)
            for folder, files in sorted(self.folders.items())
            for file in files
            if MANIFEST not in files or file.endswith(NEW)
        ]

    def names(self, folder: StepFolder) -> list[str]:
        """The files of a folder, the manifest first: without it the rest is no checkpoint."""
        files = sorted(self.folders.get(folder, ()), key=lambda file: (file != MANIFEST, file))
        return [folder.file(file) for file in files]

    def manifest(self, store: BlobStore, folder: StepFolder) -> Manifest:
        """The manifest of a committed step; from its copy where it is damaged and there is one.
        Raises Damaged, and StorageError for one of a later version."""
        try:
            return read_manifest(store, folder, MANIFEST, self.folders[folder][MANIFEST])
        except Damaged:
            if COPY not in self.folders[folder]:
                raise
            return read_manifest(store, folder, COPY, self.folders[folder][COPY])


def read_manifest(store: BlobStore, folder: StepFolder, name: str, size: int) -> Manifest:
    """A manifest as it stands in a file. Raises Damaged where it is not whole."""
    where = f"{store.where}/{folder.file(name)}"
    try:
        manifest = decoded(whole_file(store, folder.file(name), size), where)
    except FileNotFoundError as error:
        raise Damaged(f"{where} is gone") from error
    if manifest.step != folder.step:
        raise StorageError(
            f"{where} is of step {manifest.step}: its folder was renamed; give it its name back"
        )
    return manifest
