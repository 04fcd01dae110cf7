"""Stores by their URLs."""

from __future__ import annotations

from importlib import import_module

from stack.storage.errors import StorageError
from stack.storage.folder import Folder
from stack.storage.store import BlobStore


def opened(where: str, deadline_s: float) -> list[BlobStore]:
    """The stores of "file:/nvme/run, s3://bucket/run", the nearest first; a text without a scheme
    is a folder. Raises StorageError for others."""
    texts = [text.strip() for text in where.split(",")]
    return [_store(text, deadline_s) for text in texts]


def _store(text: str, deadline_s: float) -> BlobStore:
    scheme, colon, rest = text.partition(":")
    if scheme == "s3" and rest.startswith("//"):
        made: BlobStore = import_module("stack.storage.s3").S3.of(text, deadline_s)
        return made
    if scheme == "file" and colon:
        return Folder(rest.removeprefix("//") if rest.startswith("///") else rest)
    if "://" in text or not text:
        raise StorageError(
            f"{text!r} is no place for checkpoints; they go to a folder (file:/PATH or PATH) or to "
            "s3://BUCKET/PREFIX"
        )
    return Folder(text)
