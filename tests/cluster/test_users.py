"""A cluster of several users: whose a job is, who may do what, and as whom it runs."""

import json
import os
import pwd
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hal.core.errors import InvalidCall
from stack.cluster import users
from stack.cluster.client import ask
from stack.cluster.cluster import LiveCluster
from stack.cluster.files import ClusterFile, told
from stack.cluster.users import NotAllowed, User
from tests.cluster.test_cluster import FOUR, HOST, WAIT_S, go_on, job, said, state

OTHER, STRANGER = "nobody", "daemon"
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root runs jobs as others")
ASK = """
import json, os, sys
from pathlib import Path
from hal.core.errors import HalError
from stack.cluster.client import ask
user = int(sys.argv[1])
os.setgroups([]); os.setgid(user); os.setuid(user)
answers = []
for request in json.loads(sys.argv[3]):
    try:
        answers.append(ask(Path(sys.argv[2]), *request))
    except HalError as error:
        answers.append({"error": str(error)})
print(json.dumps(answers))
"""


@pytest.fixture
def place():
    """A folder that every user of the machine reaches."""
    with tempfile.TemporaryDirectory(prefix="hal-users-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


def reached_by_all(place):
    """What starts a command where every user reaches this interpreter: in a view of the file system
    of its own, without the rest of a folder that only its owner may enter."""
    python = Path(sys.executable).resolve()
    closed = [folder for folder in python.parents if not folder.stat().st_mode & 1]
    if not closed:
        return []
    top = closed[-1]
    if Path(__file__).is_relative_to(top):
        pytest.skip(f"other users do not reach the sources in {top}")
    inner, aside = top / python.relative_to(top).parts[0], place / "aside"
    aside.mkdir()
    view = (
        'mount --bind "$1" "$2" && mount -t tmpfs -o mode=755 none "$3" && mkdir "$1" && '
        'mount --bind "$2" "$1" && umount "$2" && shift 3 && exec "$@"'
    )
    return ["unshare", "-m", "sh", "-c", view, "view", str(inner), str(aside), str(top)]


@pytest.fixture
def shared(place):
    """A daemon for two users, run by root: its folder. It knows a secret."""
    file = place / "cluster.toml"
    file.write_text(
        f'users = ["{OTHER}"]\n[[hosts]]\nname = "{HOST}"\n'
        'chips = [{kind = "cpu", devices = 4}]\n'
    )
    command = [sys.executable, "-m", "stack.cluster.serve", str(place / "state")]
    daemon = subprocess.Popen(
        [*reached_by_all(place), *command, "--config", str(file), "--page", "0"],
        env={**os.environ, "SECRET_OF_ROOT": "1"},
        stdout=subprocess.PIPE,
    )
    assert select.select([daemon.stdout], [], [], WAIT_S)[0]
    assert b"is up" in os.read(daemon.stdout.fileno(), 1 << 16)
    yield place / "state"
    daemon.terminate()
    daemon.communicate(timeout=WAIT_S)


def as_user(name, folder, *requests):
    """What the daemon of a folder answers to requests from a process of another user."""
    uid = str(pwd.getpwnam(name).pw_uid)
    done = subprocess.run(
        [sys.executable, "-c", ASK, uid, str(folder), json.dumps(requests)],
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    return json.loads(done.stdout)


def body_of(folder, **more):
    file = job(folder, **more)
    return {"script": file.script, "arguments": list(file.arguments), "folder": str(folder)}


def until_ended(folder, number):
    end_s = time.monotonic() + WAIT_S
    while any(r["job"] == number and r["state"] != "ended" for r in ask(folder, "GET", "/jobs")):
        assert time.monotonic() < end_s
        time.sleep(0.05)


@ROOT
@pytest.mark.slow
def test_a_job_runs_as_who_has_handed_it_in_and_is_his_alone(shared, place):
    folder = place / "his"
    body = body_of(folder)
    (folder / "train.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "Path('who').write_text(f\"{os.getresuid()} {os.getgroups()} {os.environ['HOME']}\")\n"
        "Path('env').write_text(' '.join(os.environ))\nprint('seen')\n"
    )
    account = pwd.getpwnam(OTHER)
    os.chown(folder, account.pw_uid, account.pw_gid)
    mine = ask(shared, "POST", "/jobs", body_of(place / "mine", steps=1000))["job"]
    (handed_in,) = as_user(OTHER, shared, ("POST", "/jobs", body))
    his = handed_in["job"]
    until_ended(shared, his)
    assert ask(shared, "GET", f"/jobs/{his}/why") == {"why": "done"}
    uid = account.pw_uid
    groups = sorted(set(os.getgrouplist(OTHER, account.pw_gid)))
    assert (folder / "who").read_text() == f"{(uid, uid, uid)} {groups} {account.pw_dir}"
    assert "SECRET_OF_ROOT" not in (folder / "env").read_text()
    assert (folder / "who").stat().st_uid == uid

    assert [(r["job"], r["user"]) for r in ask(shared, "GET", "/jobs")] == [
        (mine, users.own().name),
        (his, OTHER),
    ]
    others = [("GET", "why"), ("GET", "log"), ("POST", "cancel"), ("POST", "hold")]
    jobs, log, page, *refused = as_user(
        *(OTHER, shared, ("GET", "/jobs"), ("GET", f"/jobs/{his}/log"), ("GET", "/page")),
        *((method, f"/jobs/{mine}/{what}") for method, what in others),
        *(("POST", path) for path in (f"/hosts/{HOST}/drain", "/end")),
    )
    assert [row["job"] for row in jobs] == [his]
    assert "seen" in log["text"]
    assert "token" in page["page"]
    no = {"error": f"job {mine} is another user's; `hal jobs` lists yours"}
    assert refused[:-2] == [no] * len(others)
    assert all("for root alone" in one["error"] for one in refused[-2:])
    (strange,) = as_user(STRANGER, shared, ("GET", "/jobs"))
    assert "is not among this cluster's users" in strange["error"]
    # the journal and its secrets are no other user's
    for name in ("journal.db", "journal.db-wal", "lock"):
        assert not (shared / name).stat().st_mode & 0o077
    assert not (shared / "jobs" / str(mine)).stat().st_mode & 0o077
    ask(shared, "POST", f"/jobs/{mine}/cancel")
    until_ended(shared, mine)


@ROOT
@pytest.mark.slow
def test_what_a_user_puts_among_his_files_is_not_read_for_him(shared, place):
    """A link to what root alone may read, and a status that is no number."""
    secret = place / "secret"
    secret.write_text("of root\n")
    secret.chmod(0o600)
    folder = place / "his"
    body = body_of(folder)
    jobs = shared / "jobs"
    (folder / "train.py").write_text(
        f"import os\nos.chdir('{jobs}/1')\nos.unlink('log-1')\nos.symlink('{secret}', 'log-1')\n"
        "os.mkdir('exit-1.part')\nraise SystemExit(3)\n"
    )
    os.chown(folder, pwd.getpwnam(OTHER).pw_uid, -1)
    (handed_in,) = as_user(OTHER, shared, ("POST", "/jobs", body))
    number = handed_in["job"]
    until_ended(shared, number)
    log, why = as_user(
        OTHER, shared, ("GET", f"/jobs/{number}/log"), ("GET", f"/jobs/{number}/why")
    )
    assert log["text"] == ""
    assert why["why"].startswith("failed")
    assert "of root" not in why["why"]


@ROOT
@pytest.mark.slow
def test_users_share_fairly_where_the_rules_say_so(place):
    """The one who uses less goes first, whoever asked earlier."""
    rules = {"order": ["user", "submitted"]}
    config = told({**FOUR, "users": [OTHER], "rules": rules}, ClusterFile, "the test")
    cluster = LiveCluster(place / "state", config)
    first = cluster.submit(job(place / "a", steps=1000))
    second = cluster.submit(job(place / "b", ranks=4))
    folder = job(place / "c", ranks=4)
    os.chown(place / "c", pwd.getpwnam(OTHER).pw_uid, -1)
    third = cluster.submit(folder, OTHER)
    go_on(cluster, lambda: "start" in said(place / "a"))
    assert "is before it" in cluster.why(second)
    assert "it is next" in cluster.why(third)
    for number in (first, second, third):
        cluster.cancel(number)
    go_on(cluster, lambda: state(cluster, first) == "ended")
    cluster.close()


def test_who_is_not_root_cannot_run_jobs_of_others(tmp_path, monkeypatch):
    config = told({**FOUR, "users": [OTHER]}, ClusterFile, "the test")
    monkeypatch.setattr("stack.cluster.cluster.own", lambda: User("ann", 1000, 1000, "/"))
    with pytest.raises(InvalidCall, match="ann cannot start these; have root start the daemon"):
        LiveCluster(tmp_path / "state", config)
    monkeypatch.undo()
    strange = told({**FOUR, "users": ["no-such-account"]}, ClusterFile, "the test")
    if os.getuid() == 0:
        with pytest.raises(InvalidCall, match="there is no user 'no-such-account'"):
            LiveCluster(tmp_path / "state", strange)


def test_only_files_of_the_folders_owner_are_read(tmp_path):
    (tmp_path / "own").write_text("here")
    with users.open_own(tmp_path / "own") as file:
        assert file.read() == b"here"
    (tmp_path / "link").symlink_to(tmp_path / "own")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "none"):
        with pytest.raises(FileNotFoundError, match=name):
            users.open_own(tmp_path / name)
    if os.getuid() == 0:
        os.chown(tmp_path / "own", 65534, -1)
        with pytest.raises(FileNotFoundError, match="is no file of user 0"):
            users.open_own(tmp_path / "own")
    assert issubclass(NotAllowed, InvalidCall)
