"""A job on Kubernetes: what it is given, and following it there, by the real client against a
server of the API that keeps state."""

import asyncio
import json
import threading
import time
from functools import partial

import pytest

from hal.core.errors import InvalidCall
from stack.cluster.files import JobFile, told
from stack.cluster.kubernetes import Course, Kubernetes, manifests, text_of

WAIT_S = 60.0
VERSION = "1.37"


def job(**more):
    given = {"script": "train.py", "folder": "/app", "image": "registry.example/hal:1", **more}
    return told(given, JobFile, "the test")


WIDE = {"ranks": 8, "per_host": 4, "kinds": ["sunway"], "resource": "sunway.example/cg"}


def named(made, kind):
    return next(one for one in made if one["kind"] == kind)


@pytest.mark.parametrize("more", [{}, WIDE, {**WIDE, "restarts": 2, "limit_s": 90.5}])
def test_the_schemas_of_kubernetes_take_the_objects(more):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    made = manifests(job(environment={"A": "b c"}, **more), "gpt")
    for one in json.loads(text_of(made))["items"]:
        if one["kind"] == "JobSet":  # not one of Kubernetes' own; the Job in it is
            (group,) = one["spec"]["replicatedJobs"]
            inner = group["template"]["spec"]
            one = {**one, "apiVersion": "batch/v1", "kind": "Job", "spec": inner}
        validate.validate(one, VERSION, strict=True)


def test_a_gang_is_a_job_of_kueue_with_a_pod_a_host():
    level = {"within": "cloud.example/rack", "required": True}
    made = manifests(job(**WIDE, **level, queue="research", limit_s=90.5, grace_s=20), "gpt")
    main = made[-1]
    assert [one["kind"] for one in made] == [
        *("Service", "ServiceAccount", "Role", "RoleBinding", "Job")
    ]
    spec, pod = main["spec"], main["spec"]["template"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert (spec["suspend"], spec["activeDeadlineSeconds"]) == (True, 91)
    assert main["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert pod["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-required-topology": "cloud.example/rack"
    }
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {"limits": {"sunway.example/cg": "4"}}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 20
    assert pod["spec"]["subdomain"] == named(made, "Service")["metadata"]["name"] == "gpt"
    again = manifests(job(**WIDE, restarts=3), "gpt")[-1]
    assert (again["kind"], again["spec"]["failurePolicy"]) == ("JobSet", {"maxRestarts": 3})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"image": ""}, "say `image`"),
        ({"ranks": 3, "per_host": 2}, "3 ranks by 2 on a host"),
        ({"ranks": 4, "least": 2}, "leave out `least`"),
        ({"kinds": ["sunway"]}, "say `resource`"),
        ({"within": "rack"}, "`within` needs one of Kueue's queues"),
        ({"priority": 3}, "leave `priority` out"),
    ],
)
def test_what_kubernetes_cannot_be_told_is_refused(more, words):
    with pytest.raises(InvalidCall, match=words):
        manifests(job(**more), "gpt")
    with pytest.raises(InvalidCall, match="is no name for Kubernetes"):
        manifests(job(), "My_Job")


class Emulated:
    """An API server on a thread of its own; `turn` runs a coroutine there."""

    def __init__(self, kmock):
        self.emulator = kmock.KubernetesEmulator()
        for path, kind in (
            ("batch/v1/jobs", "Job"),
            ("v1/services", "Service"),
            ("v1/serviceaccounts", "ServiceAccount"),
            ("rbac.authorization.k8s.io/v1/roles", "Role"),
            ("rbac.authorization.k8s.io/v1/rolebindings", "RoleBinding"),
        ):
            self.emulator.resources[path] = {
                "namespaced": True,
                "kind": kind,
                "subresources": {"status"},
            }
        self._kmock = kmock
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._up.wait(WAIT_S)

    def _serve(self):
        self._over = self._loop.create_future()

        async def live():
            async with self.emulator, self._kmock.Server(self.emulator) as server:
                self.url = str(server.url)
                self._up.set()
                await asyncio.wait_for(self._over, 600)

        self._loop.run_until_complete(live())
        self._loop.close()

    def close(self):
        self._loop.call_soon_threadsafe(self._over.set_result, None)
        self._thread.join(WAIT_S)


@pytest.fixture(scope="module")
def server():
    kmock = pytest.importorskip("kmock", reason="pip install kmock")
    pytest.importorskip("kubernetes", reason="pip install hal-accel[k8s]")
    made = Emulated(kmock)
    yield made
    made.close()


@pytest.fixture
def api(server):
    real = pytest.importorskip("kubernetes.client")
    with real.ApiClient(real.Configuration(host=server.url)) as client:
        yield Kubernetes(client)


def told_status(api, name, **status):
    api._custom.patch_namespaced_custom_object(
        "batch", "v1", "default", "jobs", name, {"status": status}
    )


def condition(kind, message=""):
    return {"conditions": [{"type": kind, "status": "True", "message": message}]}


def follow_on_a_thread(api, main):
    seen, news = [], threading.Condition()

    def follow():
        for course in api.follow(main):
            with news:
                seen.append(course)
                news.notify()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()

    def until(text, again=lambda: None):
        """The server keeps no versions and does not tell what was before a watch began: again."""
        end_s = time.monotonic() + WAIT_S
        while not any(text in course.text for course in seen):
            assert time.monotonic() < end_s, seen
            again()
            with news:
                news.wait_for(lambda: any(text in c.text for c in seen), 0.2)

    return seen, until, thread


@pytest.mark.slow
def test_a_job_is_made_once_watched_and_removed(api):
    made = manifests(job(**WIDE), "once")
    api.submit(made)
    api.submit(made)  # as who was cut off before he heard of it
    with pytest.raises(InvalidCall, match="refuses Job 'once'"):
        api.submit(manifests(job(**{**WIDE, "ranks": 12}), "once"))
    seen, until, thread = follow_on_a_thread(api, made[-1])
    until("0 of its pods")
    until("2 of its pods are there", lambda: told_status(api, "once", active=2))
    lost = partial(told_status, api, "once", active=1, failed=1)
    until("1 of its pods are there, 1 failed before", lost)
    until("n3", lambda: told_status(api, "once", **condition("Failed", "its node n3 is lost")))
    thread.join(WAIT_S)
    assert seen[-1] == Course("failed: its node n3 is lost", over=True)
    api.delete(made)
    api.delete(made)
    assert list(api.follow(made[-1])) == [Course("once was deleted by somebody else", over=True)]


@pytest.mark.slow
def test_who_deletes_a_job_is_noticed(api):
    made = manifests(job(), "gone")
    api.submit(made)
    seen, until, thread = follow_on_a_thread(api, made[-1])
    until("1 of its pods", lambda: told_status(api, "gone", active=1))
    api.delete(made)
    thread.join(WAIT_S)
    assert seen[-1] == Course("gone was deleted by somebody else", over=True)


class Cut:
    """A client's watch that is cut off as the real API cuts it off, once each: too old a version,
    an end without a word, a connection that breaks."""

    def __init__(self, stream, refused):
        self.left = ["gone", "ended", "broken"]
        self._stream, self._refused = stream, refused

    def __call__(self, watcher, *arguments, **options):
        match self.left.pop(0) if self.left else "":
            case "gone":
                raise self._refused(status=410, reason="Expired: too old resource version")
            case "ended":
                return iter(())
            case "broken":
                raise ConnectionResetError("the API server was restarted")
        return self._stream(watcher, *arguments, **options)


@pytest.mark.slow
def test_a_watch_that_is_cut_off_is_made_anew(api, monkeypatch):
    monkeypatch.setattr("stack.cluster.kubernetes.AGAIN_S", 0.01)
    cut = Cut(api._watch.stream, api._refused)
    monkeypatch.setattr(api._watch, "stream", lambda *a, **o: cut(*a, **o))
    made = manifests(job(), "cut")
    api.submit(made)
    seen, until, thread = follow_on_a_thread(api, made[-1])
    until("done", lambda: cut.left or told_status(api, "cut", **condition("Complete")))
    thread.join(WAIT_S)
    assert seen[-1] == Course("done", over=True, well=True)
    assert not cut.left
    api.delete(made)
