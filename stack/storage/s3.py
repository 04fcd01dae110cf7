"""A store that is a bucket of an object store, by boto3. Several ranks fill one object by the parts
of one upload; where the bucket is follows from boto3's own settings (`AWS_ENDPOINT_URL` and such).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import boto3
import numpy as np
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stack.storage.errors import Occupied, StorageError
from stack.storage.memory import Bytes
from stack.storage.store import BlobStore, Destination, WriteLease, Written

LEASE = "lease.json"
LEASE_S = 10.0
"""A lease whose holder has not renewed it for so long is another's to take."""
CONNECT_S = 5.0
ATTEMPTS = 3
PART = 5 << 20
"""No part but the last is smaller; blocks are larger, so each has a part number of its own."""


class S3(BlobStore):
    """Objects of a bucket below a prefix."""

    in_place = False

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self.where = f"s3://{bucket}/{prefix}".rstrip("/")

    @classmethod
    def of(cls, url: str, deadline_s: float) -> S3:
        """The store of "s3://BUCKET/PREFIX"; each call ends within the deadline."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise StorageError(f"{url!r} names no bucket; it is s3://BUCKET/PREFIX")
        config = Config(
            connect_timeout=min(CONNECT_S, deadline_s / 4),
            read_timeout=min(60.0, deadline_s / 4),
            retries={"max_attempts": ATTEMPTS - 1, "mode": "standard"},
            max_pool_connections=32,
            request_checksum_calculation="when_required",
        )
        prefix = prefix.strip("/")
        try:
            client = boto3.client("s3", config=config)
        except BotoCoreError as error:
            raise StorageError(f"cannot use {url}: {error}; set boto3's settings") from error
        return cls(client, bucket, f"{prefix}/" if prefix else "")

    def take(self, name: str, size: int) -> Destination:
        with self._told(f"begin {name}"):
            made = self._client.create_multipart_upload(**self._key(name))
        return Destination(name, size, made["UploadId"])

    def put(self, destination: Destination, offset: int, data: Bytes, nbytes: int) -> str:
        with self._told(f"write {destination.name} at byte {offset:,}"):
            done = self._client.upload_part(
                **self._key(destination.name),
                UploadId=destination.token,
                PartNumber=offset // PART + 1,
                Body=data[:nbytes].tobytes(),
            )
        return str(done["ETag"])

    def sync(self) -> None:
        return

    def finish(self, written: Written) -> None:
        for destination, receipts in written.items():
            with self._told(f"finish {destination.name}"):
                if not receipts:  # an upload has a part at least
                    self._client.put_object(**self._key(destination.name), Body=b"")
                    continue
                parts = [
                    {"PartNumber": offset // PART + 1, "ETag": tag}
                    for offset, tag in sorted(receipts.items())
                ]
                self._client.complete_multipart_upload(
                    **self._key(destination.name),
                    UploadId=destination.token,
                    MultipartUpload={"Parts": parts},
                )

    def commit(self, name: str, data: bytes, replace: bool = False) -> bool:
        condition = {} if replace else {"IfNoneMatch": "*"}
        return self._put(name, data, condition) is not None

    def _put(self, name: str, data: bytes, condition: dict[str, str]) -> str | None:
        """Put a small object; gives its tag, and None where the condition does not hold."""
        for _ in range(ATTEMPTS):
            try:
                with self._told(f"commit {name}"):
                    done = self._client.put_object(**self._key(name), Body=data, **condition)
                    return str(done["ETag"])
            except _Condition as error:
                if not error.conflict:
                    return None
        raise StorageError(f"cannot commit {name} in {self.where}: others write it all the time")

    def read(self, name: str, offset: int, out: Bytes) -> int:
        if not len(out):
            return 0
        span = f"bytes={offset}-{offset + len(out) - 1}"
        try:
            with self._told(f"read {name} at byte {offset:,}"):
                body = self._client.get_object(**self._key(name), Range=span)["Body"]
                data = body.read()
        except _Beyond:
            return 0
        out[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def list(self, prefix: str = "") -> dict[str, int]:
        found = {}
        with self._told("list files"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    found[entry["Key"].removeprefix(self._prefix)] = int(entry["Size"])
        return found

    def delete(self, names: Iterable[str]) -> None:
        with self._told("remove files"):
            for name in names:
                self._client.delete_object(**self._key(name))

    def lease(self, owner: str) -> WriteLease:
        lease = _S3Lease(self, owner)
        with self._told("end uploads of former jobs"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for upload in page.get("Uploads", ()):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        return lease

    def close(self) -> None:
        self._client.close()

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in ("NoSuchKey", "404"):
                raise FileNotFoundError(f"{self.where}: cannot {what}: it is not there") from error
            if status in (409, 412):
                raise _Condition(status == 409) from error
            if status == 416:
                raise _Beyond from error
            raise StorageError(
                f"cannot {what} in {self.where}: {error}; look at the bucket's name, and at what "
                "its keys may do"
            ) from error
        except (BotoCoreError, OSError) as error:
            raise StorageError(
                f"cannot {what} in {self.where}: {error}; the store does not answer: look whether "
                "it runs and can be reached"
            ) from error


class _Condition(Exception):
    """A conditional put did not happen: the condition does not hold, or (`conflict`) another put
    was under way."""

    def __init__(self, conflict: bool) -> None:
        super().__init__(conflict)
        self.conflict = conflict


class _Beyond(Exception):
    """A range begins behind the end."""


class _S3Lease(WriteLease):
    """A small object that its holder writes anew all the time; each write holds only over the one
    before. Clocks are not compared: who takes it has seen it unchanged for `LEASE_S`."""

    def __init__(self, store: S3, owner: str) -> None:
        self._store, self._owner = store, owner
        self._ended = threading.Event()
        self._lost = ""
        tag = self._acquired()
        self._renewed_s = time.monotonic()
        self._tag = tag
        threading.Thread(target=self._renew, name="hal-lease", daemon=True).start()

    def _text(self) -> bytes:
        return json.dumps(
            {"owner": self._owner, "host": socket.gethostname(), "pid": os.getpid()}
        ).encode()

    def _acquired(self) -> str:
        store = self._store
        began, seen = time.monotonic(), ""
        while True:
            tag = store._put(LEASE, self._text(), {"IfNoneMatch": "*"})
            if tag is not None:
                return tag
            try:
                with store._told("read the lease"):
                    found = store._client.get_object(**store._key(LEASE))
            except FileNotFoundError:
                continue  # released meanwhile
            holder = json.loads(found["Body"].read())
            if found["ETag"] != seen:
                if seen:
                    raise Occupied(
                        f"{store.where} is written by another job, {holder['owner']}: end that "
                        "one, or save to another place"
                    )
                seen = found["ETag"]
            if _dead(holder) or time.monotonic() - began > LEASE_S:
                tag = store._put(LEASE, self._text(), {"IfMatch": seen})
                if tag is not None:
                    return tag
                began, seen = time.monotonic(), ""
            time.sleep(LEASE_S / 40)

    def _renew(self) -> None:
        turn = 0
        while not self._ended.wait(LEASE_S / 5):
            turn += 1
            try:
                text = self._text() + b" " * (turn % 100 + 1)  # its tag changes
                tag = self._store._put(LEASE, text, {"IfMatch": self._tag})
            except (StorageError, FileNotFoundError):
                continue  # `check` sees when it has been too long
            if tag is None:
                self._lost = "another job has taken it"
                return
            self._tag, self._renewed_s = tag, time.monotonic()

    def check(self) -> None:
        silent_s = time.monotonic() - self._renewed_s
        if self._lost or silent_s > LEASE_S:
            raise Occupied(
                f"the lease of {self._store.where} is lost: "
                f"{self._lost or f'it could not be renewed for {silent_s:.0f} s'}; start again"
            )

    def release(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            if not self._lost:
                with suppress(StorageError):  # whoever comes next sees that nobody renews it
                    self._store.delete([LEASE])


def _dead(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this host that has ended."""
    if holder["host"] != socket.gethostname():
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
