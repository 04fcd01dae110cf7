"""Jobs on a real cluster of this machine: a daemon with its journal, and ranks that really run."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest

from hal.core.errors import InvalidCall, PluginError
from stack.cluster import journal as journals
from stack.cluster.client import SOCKET, ask
from stack.cluster.cluster import LiveCluster
from stack.cluster.engine import NAME
from stack.cluster.files import ClusterFile, JobFile, read, told
from stack.cluster.journal import Attempt, Journal
from stack.scheduler.events import Measured, Share, Submitted
from stack.scheduler.spec import JobSpec, Option, SpecError

WAIT_S = 120.0
HOST = socket.gethostname()
FOUR = {"hosts": [{"name": HOST, "chips": [{"kind": "cpu", "devices": 4}]}]}
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
place = Path("steps")
def say(text):
    with place.open("a") as out:
        out.write(text + "\\n")
def end(*_):
    say("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
done = place.read_text().split().count("step") if place.exists() else 0
say("start")
late = time.monotonic() + 120
for left in reversed(range(int(sys.argv[1]) - done)):
    held = not left and sys.argv[2:]
    while held and not Path("go").exists() and time.monotonic() < late:
        time.sleep(0.05)
    time.sleep(0.1)
    say("step")
"""
HELD = "held"
"""The last step waits until there is a file `go`."""


def config(**more):
    return told({**FOUR, **more}, ClusterFile, "the test")


def job(folder, steps=1, *held, **more):
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    given = {"script": "train.py", "arguments": [str(steps), *held], "folder": str(folder), **more}
    return told(given, JobFile, "the test")


def said(folder):
    place = folder / "steps"
    return place.read_text().split() if place.exists() else []


def go_on(cluster, until):
    """Do what the daemon's thread does, until something holds."""
    end_s = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < end_s, cluster.jobs()
        cluster.settle()
        cluster.look()
        for descriptor, number in cluster.watched().items():
            if is_readable(descriptor):
                cluster.ended(number)
        time.sleep(0.02)
    cluster.settle()


def is_readable(descriptor):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def state(cluster, number):
    return next(row["state"] for row in cluster.jobs() if row["job"] == number)


@pytest.fixture
def cluster(tmp_path):
    made = LiveCluster(tmp_path / "state", config())
    yield made
    for row in made.jobs():
        if row["state"] != "ended":
            made.cancel(row["job"])
    go_on(made, lambda: all(row["state"] == "ended" for row in made.jobs()))
    made.close()


@pytest.fixture
def daemon(tmp_path):
    """Start daemons of one cluster, one after the other."""
    file = tmp_path / "cluster.toml"
    file.write_text(f'[[hosts]]\nname = "{HOST}"\nchips = [{{kind = "cpu", devices = 4}}]\n')
    started = []

    def start():
        command = [sys.executable, "-m", "stack.cluster.serve", str(tmp_path / "state")]
        made = subprocess.Popen(
            [*command, "--config", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(made)
        assert select.select([made.stdout], [], [], WAIT_S)[0]
        line = os.read(made.stdout.fileno(), 1 << 16)
        assert b"is up" in line, made.communicate(timeout=WAIT_S)
        return made

    yield start
    for made in started:
        made.kill()
        made.communicate(timeout=WAIT_S)


@pytest.mark.slow
def test_jobs_run_wait_and_are_cancelled(cluster, tmp_path):
    first = cluster.submit(job(tmp_path / "a", 3, HELD, ranks=1))
    long = cluster.submit(job(tmp_path / "b", steps=1000, ranks=3))
    third = cluster.submit(job(tmp_path / "c", ranks=2))
    cluster.settle()
    assert "finds room for 0" in cluster.why(third)
    (tmp_path / "a" / "go").touch()
    go_on(cluster, lambda: "start" in said(tmp_path / "b"))
    cluster.cancel(long)
    go_on(cluster, lambda: state(cluster, third) == state(cluster, first) == "ended")
    assert cluster.why(first) == cluster.why(third) == "done"
    assert cluster.why(long) == "stopped: it was cancelled"
    assert said(tmp_path / "a") == ["start", *["step"] * 3]
    ours = f"{tmp_path / 'state'}".encode()
    assert not [p for p in processes() if ours in p]


def processes():
    """The command lines of all processes."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            yield (place / "cmdline").read_bytes()
        except OSError:
            continue


@pytest.mark.slow
def test_a_daemon_that_is_killed_loses_no_job_and_starts_none_twice(daemon, tmp_path):
    first = daemon()
    folder = tmp_path / "state"
    file = job(tmp_path / "a", steps=10)
    body = {"script": file.script, "arguments": list(file.arguments), "folder": file.folder}
    number = ask(folder, "POST", "/jobs", body)["job"]
    short = job(tmp_path / "b", steps=1)
    later = ask(folder, "POST", "/jobs", {**body, "folder": short.folder, "arguments": ["1"]})[
        "job"
    ]
    first.kill()  # the answer says that both are durable, not that they have begun
    first.wait(WAIT_S)
    daemon()
    end_s = time.monotonic() + WAIT_S
    while any(row["state"] != "ended" for row in ask(folder, "GET", "/jobs")):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert [ask(folder, "GET", f"/jobs/{n}/why")["why"] for n in (number, later)] == ["done"] * 2
    assert said(tmp_path / "a") == ["start", *["step"] * 10]
    assert said(tmp_path / "b") == ["start", "step"]


@pytest.mark.slow
def test_a_job_that_is_resized_goes_on_with_its_new_ranks(cluster, tmp_path):
    number = cluster.submit(job(tmp_path / "a", 6, HELD, ranks=3))
    go_on(cluster, lambda: said(tmp_path / "a").count("start") == 3)
    cluster.resize(number, 1)
    go_on(cluster, lambda: said(tmp_path / "a").count("start") == 4)
    (row,) = cluster.jobs()
    assert (row["ranks"], row["wanted"]) == (1, 1)
    (tmp_path / "a" / "go").touch()
    go_on(cluster, lambda: state(cluster, number) == "ended")
    assert cluster.why(number) == "done"
    with pytest.raises(InvalidCall, match=f"there is no job {number} here; it ended: done"):
        cluster.resize(number, 2)


@pytest.mark.slow
def test_a_job_with_options_has_the_strategy_that_was_chosen_and_goes_over_to_another(tmp_path):
    hosts = [{"name": HOST, "chips": [{"kind": "cpu", "devices": 2}]}]
    cluster = LiveCluster(tmp_path / "state", config(hosts=hosts))
    ways = [
        {"kind": "cpu", "ranks": 2, "strategy": "wide", "speed": 10.0},
        {"kind": "cpu", "ranks": 1, "strategy": "narrow", "speed": 6.0},
    ]
    out = tmp_path / "a"
    out.mkdir()
    (out / "which.py").write_text(WHICH)
    given = {"script": "which.py", "folder": str(out), "options": ways, "move_s": 0}
    number = cluster.submit(told(given, JobFile, "the test"))
    go_on(cluster, lambda: said(out) == ["wide"] * 2)
    cluster.measured(number, 8.0)
    other = cluster.submit(job(tmp_path / "b", steps=1000, ranks=1))
    go_on(cluster, lambda: len(said(out)) == 3 and starts(tmp_path / "b") == 1)
    cluster.cancel(other)
    go_on(cluster, lambda: len(said(out)) == 5)
    assert said(out) == ["wide", "wide", "narrow", "wide", "wide"]
    assert cluster.why(number) == "it runs with 2 ranks of kind 'cpu' by wide"
    cluster.cancel(number)
    go_on(cluster, lambda: state(cluster, number) == "ended")
    cluster.close()


WHICH = """
import os, time
with open("steps", "a") as out:
    out.write(os.environ["HAL_STRATEGY"] + "\\n")
time.sleep(100)
"""


def agents(cluster, number):
    """The processes of the agents of a job's newest run, by the host that they were started for."""
    name = cluster._engine._named(cluster._courses[number].runs).encode()
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            given = (place / "environ").read_bytes().split(b"\0")
            variables = dict(v.split(b"=", 1) for v in given if b"=" in v)
        except OSError:
            continue
        if variables.get(NAME.encode()) == name and b"stack.launch.agent" in words:
            found[variables.get(b"ON", b"").decode()] = int(place.name)
    return found


@pytest.mark.slow
def test_a_job_whose_agent_is_killed_goes_on_where_it_was(cluster, tmp_path):
    out = tmp_path / "a"
    number = cluster.submit(job(out, 8, HELD))
    go_on(cluster, lambda: said(out)[-1:] == ["step"])
    os.kill(agents(cluster, number)[""], signal.SIGKILL)
    (out / "go").touch()
    go_on(cluster, lambda: state(cluster, number) == "ended")
    assert cluster.why(number) == "done"
    assert (starts(out), said(out).count("step")) == (2, 8)


def starts(out):
    return said(out).count("start")


@pytest.mark.slow
def test_a_job_whose_host_is_lost_goes_on_elsewhere_and_the_host_is_used_when_it_is_back(tmp_path):
    """Hosts that a shell reaches, unless a file says that it cannot."""
    reach = tmp_path / "reach"
    reach.write_text(f'[ -e "{tmp_path}/down-$1" ] && exit 255; ON=$1 exec sh -c "$2"\n')
    hosts = [{"name": n, "chips": [{"kind": "cpu", "devices": 1}]} for n in ("n1", "n2")]
    more = {"hosts": hosts, "shell": f"sh {reach} {{host}}", "address": "127.0.0.1"}
    cluster = LiveCluster(tmp_path / "state", config(**more))

    def look():
        for host in cluster.doubted():
            cluster.do([partial(LiveCluster.heard, host=host, answers=cluster.answers(host))])
        return cluster.usable()

    out = tmp_path / "a"
    number = cluster.submit(job(out, 10, HELD))
    go_on(cluster, lambda: said(out)[-1:] == ["step"])
    ((host, agent),) = agents(cluster, number).items()
    other = {"n1": "n2", "n2": "n1"}[host]
    (tmp_path / f"down-{host}").touch()
    os.kill(agent, signal.SIGKILL)
    go_on(cluster, cluster.doubted)
    assert look() == [other]
    assert [row["name"] for row in cluster.hosts() if row["lost"]] == [host]
    go_on(cluster, lambda: starts(out) == 2)
    assert list(agents(cluster, number)) == [other]
    assert look() == [other], "it is still down"
    (tmp_path / f"down-{host}").unlink()
    assert look() == ["n1", "n2"]
    (out / "go").touch()
    go_on(cluster, lambda: state(cluster, number) == "ended")
    assert cluster.why(number) == "done"
    assert said(out).count("step") == 10
    cluster.close()


@pytest.mark.slow
def test_a_host_that_cannot_be_reached_is_said_of_the_job(tmp_path):
    moon = [{"name": "moon.invalid", "chips": [{"kind": "cpu", "devices": 1}]}]
    cluster = LiveCluster(tmp_path / "state", config(hosts=moon))
    number = cluster.submit(job(tmp_path / "a"))
    go_on(cluster, lambda: state(cluster, number) == "ended")
    assert "failed: exit status 1: hal run: how moon.invalid reaches" in cluster.why(number)
    assert said(tmp_path / "a") == []
    cluster.close()


def test_what_cannot_run_is_refused_in_words(cluster, tmp_path):
    plain = job(tmp_path / "a")
    for more, words in (
        ({"queue": "night"}, "there is no queue 'night'; there are: main"),
        ({"kinds": ("tpu",)}, "there is no device of kind 'tpu'; there are: cpu"),
        ({"within": "rack"}, "there is no level 'rack'"),
        ({"ranks": 5}, "has room for 4 ranks"),
        ({"least": 3, "ranks": 2}, "least is 3, ranks 2"),
        ({"script": "other.py"}, "there is no script 'other.py'"),
        ({"folder": "/nowhere"}, "there is no folder '/nowhere'"),
    ):
        with pytest.raises(InvalidCall, match=words.replace("(", r"\(")):
            cluster.submit(job_with(plain, **more))
    with pytest.raises(InvalidCall, match="there is no job 99"):
        cluster.cancel(99)
    with pytest.raises(InvalidCall, match="there is no host 'moon'"):
        cluster.drain("moon")


def job_with(file, **more):
    return msgspec.structs.replace(file, **more)


def test_files_that_say_something_else_are_refused_with_the_place(tmp_path):
    file = tmp_path / "job.toml"
    for text, words in (
        ("script = 3", r"Expected `str`, got `int`.*\$\.script"),
        ('script = "a"\nrank = 2', "unknown field `rank`"),
        ('script = "a"\nranks = 0', r"`int` >= 1.*\$\.ranks"),
        ('script = "a"\nenvironment = {"A=B" = "1"}', r"`key` in `\$\.environment"),
        ('script = "a"\narguments = ["\\u0000"]', r"\$\.arguments\[0\]"),
        ("script", "is not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidCall, match=words):
            read(file, JobFile)
    with pytest.raises(InvalidCall, match="cannot be read"):
        read(tmp_path / "none.toml", JobFile)
    with pytest.raises(InvalidCall, match=r"'\\udcff' is not text"):
        told({"script": "a", "arguments": [os.fsdecode(b"\xff")]}, JobFile, "the job")


CHIPS = [{"kind": "cpu", "devices": 1}]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"hostz": []}, "unknown field `hostz`; there are: levels, queues, hosts, "),
        (
            {"hosts": [{"name": "a", "chips": [{"kind": "cpu", "device": 1}]}]},
            r"`\$.hosts\[0\].chips\[0\]`; there are: kind, devices, chip$",
        ),
        ({"hosts": [{"name": "a", "chips": [{"kind": "cpu", "devices": 0}]}]}, r"devices`$"),
        ({"rules": {"backfill": "best"}}, "there are: none, easy, conservative$"),
        ({"rules": {"order": ["prio"]}}, "no key 'prio' to order by; there are: priority, "),
        ({"rules": {"patience_s": -3}}, "patience_s is -3"),
        ({"rules": {"depth": 0}}, "depth is 0"),
        ({"queues": [{"name": "a"}, {"name": "a"}]}, "two queues of the name 'a'"),
        ({"hosts": [{"name": "n", "chips": CHIPS}] * 2}, "two hosts of the name 'n'"),
        ({"hosts": [{"name": "a b", "chips": CHIPS}]}, "'a b' is no name for a host"),
    ],
)
def test_a_cluster_that_cannot_be_as_it_is_written_is_refused_in_words(more, words, tmp_path):
    """Two of one name were taken, and one of them was lost; fields were named of another
    table."""
    with pytest.raises((InvalidCall, SpecError), match=words):
        LiveCluster(tmp_path / "state", config(**more))


def test_what_happened_to_a_job_with_options_comes_back_from_the_journal(tmp_path):
    options = (Option("cpu", 2, "wide", 10.0), Option("cpu", 1, "", 0.1))
    spec = JobSpec("main", 2, ("cpu",), options=options, weight=2.0, move_s=0.5)
    events = [Submitted(1.5, 7, spec), Measured(2.5, 7, 1 / 3)]
    run = Attempt(7, 1, (Share("n1", "0", "cpu", (0, 1)),), None, "wide")
    journal = Journal(tmp_path / "state")
    for event in events:
        journal.add_event(event)
    journal.add_run(run)
    journal.commit()
    journal.close()
    again = Journal(tmp_path / "state")
    assert list(again.events()) == events
    assert again.runs(7) == [run]
    again.close()


def test_a_job_has_a_number_that_none_had_even_one_that_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "ENDED", 1)
    journal = Journal(tmp_path / "state")
    for ended_s in (2.0, 1.0):  # the second one ends first, and is forgotten
        number = journal.next_job()
        journal.add_job(number, job(tmp_path / "job"), "u", 0.0)
        journal.end_job(number, ended_s, "done")
    journal.keep_snapshot({}, config())
    assert [journal.job(number) is None for number in (1, 2)] == [False, True]
    assert journal.next_job() == 3
    journal.close()


def test_a_journal_of_another_version_is_refused_in_words(tmp_path):
    journal = Journal(tmp_path / "state")
    journal.set_fact("version", journals.VERSION - 1)
    journal.commit()
    journal.close()
    with pytest.raises(InvalidCall, match="; this reads"):
        Journal(tmp_path / "state")


def test_a_daemon_that_ends_while_it_is_asked_is_said_in_words(tmp_path):
    with socket.socket(socket.AF_UNIX) as daemon, ThreadPoolExecutor(1) as pool:
        daemon.settimeout(30)
        daemon.bind(str(tmp_path / SOCKET))
        daemon.listen()
        asked = pool.submit(ask, tmp_path, "GET", "/jobs")
        connection, _ = daemon.accept()
        connection.settimeout(30)
        connection.recv(1 << 16)
        connection.close()
        with pytest.raises(PluginError, match="ended before it answered"):
            asked.result(30)


def test_a_second_daemon_is_refused_and_a_foreign_journal_too(cluster, tmp_path):
    with pytest.raises(InvalidCall, match="another daemon has the cluster"):
        Journal(tmp_path / "state")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "journal.db").write_bytes(b"not a database" * 100)
    with pytest.raises(InvalidCall, match="is no journal"):
        Journal(tmp_path / "other")


def test_a_full_disk_refuses_a_job_and_nothing_of_it_is_there(cluster, tmp_path):
    """SQLite is told that its file may not grow, and says what it says of a full disk."""
    (pages,) = cluster._journal._base.execute("pragma page_count").fetchone()
    cluster._journal._base.execute(f"pragma max_page_count = {pages}")
    big = job(tmp_path / "b", arguments=("x" * 100_000,))
    small = job(tmp_path / "a")
    answers = cluster.do([lambda c: c.submit(small), lambda c: c.submit(big)])
    assert [str(answer) for answer in answers] == [
        "the journal cannot be written: database or disk is full; make room on its disk and try "
        "again"
    ] * 2
    assert cluster.jobs() == []
    cluster._journal._base.execute("pragma max_page_count = 1000000")
    (number,) = cluster.do([lambda c: c.submit(small)])
    go_on(cluster, lambda: state(cluster, number) == "ended")
    assert said(tmp_path / "a") == ["start", "step"]


IN_THE_BACKGROUND = """
import sys
from pathlib import Path
from stack.cluster.serve import start
sys.exit(start(Path(sys.argv[1]), None, None, background=True, in_slurm=False))
"""


@pytest.mark.slow
def test_a_daemon_on_a_full_disk_says_so(tmp_path):
    """It ended without a word where its log is on that disk, too. A limit stands for the disk."""
    full = ["sh", "-c", 'trap "" XFSZ; ulimit -f 0; exec "$@"', "sh", sys.executable]
    for start, words in (
        (["-m", "stack.cluster.serve"], "error: the journal cannot be written: "),
        (["-c", IN_THE_BACKGROUND], "wrote nothing into"),
    ):
        done = subprocess.run(
            [*full, *start, str(tmp_path / "state")],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr


def test_handing_in_a_job_imports_nothing_that_takes_long():
    code = (
        "import sys; from hal_tools.cli import main; import stack.cluster.command; "
        "main.get_command(None, 'submit'); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    heavy = {"numpy", "msgspec", "rich", "pluggy", "http.client", "subprocess", "tomllib"}
    heavy |= {"stack.scheduler"}
    assert heavy & set(done.stdout.split()) == set()
