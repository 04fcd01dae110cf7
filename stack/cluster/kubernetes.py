"""A job as objects of Kubernetes, and following it there.

An Indexed Job has a pod a host. The first pod runs `hal run`, which reaches the others by `kubectl
exec`; they wait, and are gone with it, since the Job has succeeded when its first index has. A job
that may start again is a JobSet, which starts all its pods anew when one fails: with a node, the
whole gang is lost. A queue other than main is one of Kueue's, which lets the job start when there
is room for all of it, inside a topology level where the job names one."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Iterator
from typing import Any

from hal.core.errors import InvalidCall, PluginError
from hal.core.facts import dataclass
from stack.cluster.files import JobFile

WATCH_S = 300
"""How long one watch of the API lasts before it is made anew."""
PATIENCE_S = 300.0
"""How long the API may be out of reach before who follows a job gives up."""
AGAIN_S = 1.0
JOB = "hal-job"
"""The label that all objects of a job carry, with its name."""
_INDEX = "batch.kubernetes.io/job-completion-index"
_LAUNCH = """
names() { n=0; while [ $n -lt {hosts} ]; do echo "$1-$n.$2"; n=$((n + 1)); done; }
hosts=$(mktemp) || exit 1
names "${HOSTNAME%-0}" {name} | sed 's/$/ slots={slots} devices={devices}/' > "$hosts"
for host in $(names "${HOSTNAME%-0}" {name}); do
    i=0
    until getent hosts "$host" > /dev/null; do
        i=$((i + 1)); [ $i -lt {patience} ] || { echo "$host is not there" >&2; exit 1; }
        sleep 1
    done
done
exec {run} --address "$POD_IP" --hosts "$hosts" {target}
"""
_SHELL = (
    "sh -c 'host={host}; index=${{host%%.*}}; exec kubectl exec -i \"$(kubectl get pod -o name "
    '-l {label},{index}=${{index##*-}} --field-selector=status.phase=Running)" -- sh -c "$0"\''
)
_START_S = 600


def manifests(job: JobFile, name: str) -> list[dict[str, Any]]:
    """The objects of a job of this name, in the order in which they are made.

    Raises InvalidCall for what Kubernetes cannot be told, or a job without an image."""
    _check(job, name)
    per_host = min(job.per_host or job.ranks, job.ranks)
    if job.ranks % per_host:
        raise InvalidCall(
            f"{job.ranks} ranks by {per_host} on a host leave a host with fewer; pods are all alike"
        )
    hosts = job.ranks // per_host
    labels = {JOB: name}
    run = [*("hal", "run"), "-n", str(job.ranks), "--grace", f"{job.grace_s:g}"]
    target = shlex.join([*(["-m"] if job.module else []), job.script, *job.arguments])
    devices = ",".join(f"{job.kinds[0]}:{index}" for index in range(per_host))
    if hosts == 1:
        first = f"exec {shlex.join([*run, '--devices', devices])} {target}"
    else:
        shell = _SHELL.format(host="{host}", label=f"{JOB}={name}", index=_INDEX)
        first = _LAUNCH
        for key, value in {
            "hosts": str(hosts),
            "name": name,
            "slots": str(per_host),
            "devices": devices,
            "patience": str(_START_S),
            "run": shlex.join([*run, "--shell", shell]),
            "target": target,
        }.items():
            first = first.replace(f"{{{key}}}", value)
    # the others do not hear SIGTERM, as process 1 without a handler: their ranks end with the first
    text = f'case "$JOB_COMPLETION_INDEX" in 0) {first}\n;; esac\nexec sleep infinity'
    pod = _pod(job, name, text, per_host, labels, alone=hosts == 1)
    spec = {
        "completionMode": "Indexed",
        "completions": hosts,
        "parallelism": hosts,
        "backoffLimit": 0,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": pod,
        **({} if job.limit_s is None else {"activeDeadlineSeconds": math.ceil(job.limit_s)}),
    }
    queue = {} if job.queue == "main" else {"kueue.x-k8s.io/queue-name": job.queue}
    made: dict[str, Any] = {"metadata": {"name": name, "labels": {**labels, **queue}}}
    if job.restarts:
        made |= {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
        made["spec"] = {
            "failurePolicy": {"maxRestarts": job.restarts},
            "network": {"enableDNSHostnames": False},
            "replicatedJobs": [{"name": "ranks", "replicas": 1, "template": {"spec": spec}}],
        }
    else:
        made |= {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}
    if queue:
        made["spec"]["suspend"] = True  # until Kueue lets it start
    return [*([] if hosts == 1 else _meeting(name, labels)), made]


def _check(job: JobFile, name: str) -> None:
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", name):
        raise InvalidCall(
            f"{name!r} is no name for Kubernetes: a letter, then at most 51 small letters, digits "
            "and dashes"
        )
    if not job.image:
        raise InvalidCall("Kubernetes runs images: say `image`, which has the script and hal in it")
    if job.least not in (0, job.ranks):
        raise InvalidCall("a Job has all its pods or none; leave out `least`")
    if job.mixed or job.balanced:
        raise InvalidCall(
            "pods are all alike, and Kueue spreads them: leave `mixed`, `balanced` out"
        )
    if job.priority:
        raise InvalidCall("Kubernetes has priorities by name, in classes; leave `priority` out")
    if job.within and job.queue == "main":
        raise InvalidCall("`within` needs one of Kueue's queues, whose topology names the level")
    if job.kinds[0] != "cpu" and not job.resource:
        raise InvalidCall(
            f"say `resource`: the name by which Kubernetes counts devices of kind {job.kinds[0]!r}"
        )


def _pod(
    job: JobFile, name: str, text: str, per_host: int, labels: dict[str, str], alone: bool
) -> dict[str, Any]:
    strict = "required" if job.required else "preferred"
    level = {f"kueue.x-k8s.io/podset-{strict}-topology": job.within} if job.within else {}
    variables = [{"name": key, "value": value} for key, value in job.environment.items()]
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    container = {
        "name": "ranks",
        "image": job.image,
        "command": ["sh", "-c", text],
        "workingDir": job.folder,
        "env": [*variables, {"name": "POD_IP", "valueFrom": address}],
        "resources": {"limits": {job.resource or "cpu": str(per_host)}},
    }
    return {
        "metadata": {"labels": labels, **({"annotations": level} if level else {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(job.grace_s),
            **({} if alone else {"subdomain": name, "serviceAccountName": name}),
            "containers": [container],
        },
    }


def _meeting(name: str, labels: dict[str, str]) -> list[dict[str, Any]]:
    """Names for the pods, and the first one's right to start processes in the others."""
    head = {"metadata": {"name": name, "labels": labels}}
    rights = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            **head,
            "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", **head},
        {
            "apiVersion": f"{rights}/v1",
            "kind": "Role",
            **head,
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
                {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]},
            ],
        },
        {
            "apiVersion": f"{rights}/v1",
            "kind": "RoleBinding",
            **head,
            "roleRef": {"apiGroup": rights, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        },
    ]


def text_of(made: list[dict[str, Any]]) -> str:
    """A file for `kubectl apply -f`."""
    listed = {"apiVersion": "v1", "kind": "List", "items": made}
    return json.dumps(listed, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class Course:
    """How a job stands: `over` once nothing will change any more, `well` if it succeeded."""

    text: str
    over: bool = False
    well: bool = False


class Kubernetes:
    """The API of a cluster, in a namespace. `client` is a `kubernetes.client.ApiClient`; without
    one that of the user's configuration (or of the pod that this runs in).

    Raises PluginError where the package is missing, InvalidCall where there is no configuration."""

    def __init__(self, client: Any = None, namespace: str = "default") -> None:
        try:
            from kubernetes import client as api  # noqa: PLC0415  an extra
            from kubernetes import config, watch  # noqa: PLC0415
            from urllib3.exceptions import HTTPError  # noqa: PLC0415  of which it is made
        except ModuleNotFoundError as error:
            raise PluginError("Kubernetes needs: pip install hal-accel[k8s]") from error
        if client is None:
            try:
                config.load_config()
            except config.ConfigException as error:
                raise InvalidCall(f"there is no configuration of Kubernetes: {error}") from error
        self._custom, self._core = api.CustomObjectsApi(client), api.CoreV1Api(client)
        self._watch = watch.Watch
        self._refused, self._unreachable = api.ApiException, (HTTPError, OSError)
        self._namespace = namespace

    def submit(self, made: list[dict[str, Any]]) -> None:
        """Make the objects; those that are there already, of the same job, stay: who was cut off
        may do it again, and the job is made once.

        Raises InvalidCall with what Kubernetes refuses, PluginError where it is out of reach."""
        for one in made:
            placed = {**one, "metadata": {**one["metadata"], "namespace": self._namespace}}
            try:
                self._call("create", one, placed)
            except self._refused as error:
                if error.status != 409 or not self._is_ours(one):
                    raise InvalidCall(
                        f"Kubernetes refuses {one['kind']} {one['metadata']['name']!r}: "
                        f"{_reason(error)}"
                    ) from error
            except self._unreachable as error:
                raise PluginError(f"Kubernetes is out of reach: {error}") from error

    def _is_ours(self, one: dict[str, Any]) -> bool:
        """Whether what has this name is what was to be made."""
        name = one["metadata"]["name"]
        there = self._call("get", one, name)
        labels = there["metadata"].get("labels", {})
        return labels.get(JOB) == name and _holds(there.get("spec"), one.get("spec"))

    def _call(self, verb: str, one: dict[str, Any], what: Any, **options: Any) -> Any:
        """Create, get or delete an object; `what` is it, or its name."""
        group, version, plural = _kind(one)
        if group:
            call = getattr(self._custom, f"{verb}_namespaced_custom_object")
            found = call(group, version, self._namespace, plural, what, **options)
        else:
            kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", one["kind"]).lower()
            verb = "read" if verb == "get" else verb
            arguments = (self._namespace, what) if verb == "create" else (what, self._namespace)
            found = getattr(self._core, f"{verb}_namespaced_{kind}")(*arguments, **options)
        return self._core.api_client.sanitize_for_serialization(found)

    def follow(self, main: dict[str, Any]) -> Iterator[Course]:
        """How a job stands, whenever that changes, until it is over. A watch that ends, is too old
        (410) or is cut off is made anew from a fresh look.

        Raises PluginError when the API is out of reach for too long."""
        name = main["metadata"]["name"]
        last: Course | None = None
        lately: Exception
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                for course in self._looks(main):
                    until_s = time.monotonic() + PATIENCE_S
                    if course != last:
                        last = course
                        yield course
                    if course.over:
                        return
                continue
            except self._refused as error:
                if error.status == 404:
                    yield Course(f"{name} was deleted by somebody else", over=True)
                    return
                if error.status is not None and error.status != 410 and error.status < 500:
                    raise InvalidCall(f"Kubernetes refuses: {_reason(error)}") from error
                lately = error
            except self._unreachable as error:
                lately = error
            if time.monotonic() > until_s:
                raise PluginError(f"Kubernetes is out of reach: {lately}") from lately
            time.sleep(AGAIN_S)

    def _looks(self, main: dict[str, Any]) -> Iterator[Course]:
        """A look, and what a watch from there on tells."""
        group, version, plural = _kind(main)
        name = main["metadata"]["name"]
        place = (group, version, self._namespace, plural)
        one = self._call("get", main, name)
        yield _course(one)
        watcher = self._watch()
        for event in watcher.stream(
            self._custom.list_namespaced_custom_object,
            *place,
            field_selector=f"metadata.name={name}",
            resource_version=one["metadata"].get("resourceVersion"),
            timeout_seconds=WATCH_S,
            _request_timeout=(10, WATCH_S + 30),
        ):
            found = event["object"]
            if found["metadata"]["name"] != name:
                continue
            if event["type"] == "DELETED":
                yield Course(f"{name} was deleted by somebody else", over=True)
                return
            yield _course(found)

    def delete(self, made: list[dict[str, Any]]) -> None:
        """Remove a job and what was made for it; what is gone already is no fault."""
        for one in reversed(made):
            try:
                name = one["metadata"]["name"]
                self._call("delete", one, name, propagation_policy="Foreground")
            except self._refused as error:
                if error.status != 404:
                    raise InvalidCall(f"Kubernetes refuses: {_reason(error)}") from error
            except self._unreachable as error:
                raise PluginError(f"Kubernetes is out of reach: {error}") from error


def _kind(one: dict[str, Any]) -> tuple[str, str, str]:
    group, _, version = one["apiVersion"].rpartition("/")
    return group, version, one["kind"].lower() + "s"


def _holds(there: Any, wanted: Any) -> bool:
    """Whether what is there says all that was wanted; the API adds what is usual."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(
            key == "suspend" or _holds(there.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return len(there or ()) == len(wanted) and all(map(_holds, there, wanted))
    return bool(there == wanted)


def _course(one: dict[str, Any]) -> Course:
    """What a Job's or JobSet's status says."""
    status = one.get("status") or {}
    said = {c["type"]: c for c in status.get("conditions") or () if c.get("status") == "True"}
    for kind in ("Complete", "Completed", "SuccessCriteriaMet"):
        if kind in said:
            return Course("done", over=True, well=True)
    for kind in ("Failed", "FailureTarget"):
        if kind in said:
            cause = said[kind].get("message") or said[kind].get("reason") or "no cause was given"
            return Course(f"failed: {cause}", over=True)
    if one.get("spec", {}).get("suspend"):
        return Course("it waits for its queue to let it start")
    failed = status.get("failed", 0) + status.get("restarts", 0)
    lost = f", {failed} failed before" if failed else ""
    return Course(f"{status.get('active', 0)} of its pods are there{lost}")


def _reason(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
