"""Whole athread programs, with a host part, and the command that runs them."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hal_plugin_sunway.athread import Run, run
from hal_plugin_sunway.chip import changed
from hal_plugin_sunway.command import athread

from hal.core.errors import CompileError, OperationFailed

PROGRAMS = Path(__file__).parent / "programs"

HOST = """#ifdef __sw_host__
#include <athread.h>
int main(void) {{
    athread_init();
    {host}
    return 0;
}}
#else
#include <slave.h>
__thread_local double x[{size}];
__thread_local athread_rply_t r;
void f(void *v) {{ {slave} }}
#endif
"""


@pytest.fixture
def program(tmp_path):
    def write(host="athread_spawn(f, 0); athread_join();", slave="", size=8):
        path = tmp_path / "program.c"
        path.write_text(HOST.format(host=host, slave=slave, size=size))
        return path

    return write


def test_a_program_with_host_and_slave_part_runs(chip, capfd, tmp_path):
    trace = tmp_path / "trace.json"
    file = PROGRAMS / "dot.c"
    outcome = run(chip, Run(file, file, str(trace)))
    wanted = sum((i % 7) * (i % 5) for i in range(64 * 1024))
    assert capfd.readouterr().out == f"sum {wanted} of 64 threads\n"
    assert outcome.get_nbytes >= 2 * 8 * 64 * 1024
    assert outcome.flops >= 2 * 64 * 1024
    check_timeline(json.loads(trace.read_text())["traceEvents"], chip.seconds(outcome.cycles))


def check_timeline(events, end_s):
    spans = [e for e in events if e["ph"] == "X"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and "tid" in e}
    assert {"CPE 0", "CPE 63", "MPE 0"} <= names
    assert {e["tid"] for e in spans} >= set(range(64))
    assert max(e["ts"] + e["dur"] for e in spans) <= end_s * 1e6 + 1e-6
    for cpe in range(64):
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == cpe)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(mine)), "a CPE does one thing at a time"


def test_marks_name_parts_of_the_timeline(chip, program, tmp_path):
    parts = 'athread_mark("first"); athread_work_f64(160); athread_mark("second");'
    file, trace = program(slave=parts + "athread_work_f64(320);"), tmp_path / "trace.json"
    run(chip, Run(file, file, str(trace)))
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("tid") == 5]
    took = {e["name"]: e["args"]["cycles"] for e in spans if e["ph"] == "X"}
    assert took == {"compute": 20, "first": 10, "second": 20}


def test_equal_runs_take_equal_emulated_time(chip):
    file = PROGRAMS / "dot.c"
    assert run(chip, Run(file, file)) == run(chip, Run(file, file))


def test_spawn_and_join_take_their_time(chip, program):
    file = program()
    whole = run(chip, Run(file, file)).cycles
    assert whole == chip["spawn_cycles"] + chip["join_cycles"]
    slow = changed(chip, "spawn_cycles=50000")
    assert run(slow, Run(file, file)).cycles == whole + 50000 - chip["spawn_cycles"]


@pytest.mark.parametrize("name", ["f", "SLAVE_FUN(f)", "slave_f"])
def test_a_slave_function_may_be_named_in_each_way(chip, program, name):
    file = program(f"athread_spawn({name}, 0); athread_join();")
    assert run(chip, Run(file, file)).cycles > 0


def test_ldm_stays_from_one_spawn_to_the_next(chip, program, capfd):
    again = "athread_spawn(f, 0); athread_join(); athread_spawn(f, 0); athread_join();"
    file = program(again, 'x[0]++; if (_PEN == 63) { printf("%g ", x[0]); fflush(stdout); }')
    run(chip, Run(file, file))
    assert capfd.readouterr().out == "1 2 "


def test_the_parts_may_be_two_files(chip, tmp_path, capfd):
    host, slaves = tmp_path / "host.c", tmp_path / "slaves.c"
    (tmp_path / "shared.h").write_text("struct pair { long a, b; };\n")
    host.write_text(
        '#include <athread.h>\n#include "shared.h"\nint main(void) { struct pair p = {20, 22};'
        'athread_spawn(add, &p); athread_join(); printf("%ld\\n", p.a); return 0; }\n'
    )
    slaves.write_text(
        '#include <slave.h>\n#include "shared.h"\nvoid add(void *v) { struct pair *p = v;'
        " if (_PEN == 7) p->a += p->b; }\n"
    )
    run(chip, Run(host, slaves))
    assert capfd.readouterr().out == "42\n"


@pytest.mark.parametrize(
    ("host", "slave", "words"),
    [
        ("athread_spawn(g, 0); athread_join();", "", "no function g"),
        ("athread_spawn(f, 0);", "", "without athread_join"),
        ("athread_join();", "", "without athread_spawn"),
        ("athread_spawn(f, 0); athread_spawn(f, 0);", "", "while the CPEs still run"),
        ("return 3;", "", "main returned 3"),
        ("for (volatile int i = 1; i;) ;", "", "MPE.*no call of the runtime"),
        ("athread_spawn(f, 0); athread_join();", "athread_dma_wait_value(&r, 1);", "deadlock"),
        ("athread_spawn(f, 0); athread_join();", "athread_rma_put(x, 8, 99, x, &r);", "program.c:"),
        ("athread_spawn(f, 0); athread_join();", "*(volatile int *)8 = 1;", "Segmentation fault"),
        ("athread_spawn(f, 0); athread_join();", "athread_dma_get(x, (void *)64, 8);", "no such"),
        ("athread_spawn(f, 0); athread_join();", "for (volatile int i = 1; i;) ;", "hang"),
    ],
)
def test_a_wrong_program_ends_with_its_cause(chip, program, host, slave, words):
    file = program(host, slave)
    with pytest.raises(OperationFailed, match=words):
        run(chip, Run(file, file, patience_s=0.4))


def test_too_much_ldm_is_refused_with_a_map(chip, program):
    file = program(size=40000)
    with pytest.raises(CompileError, match=r"320\d+ bytes of LDM; a CPE has 262144:\n.*: x"):
        run(chip, Run(file, file))


def test_the_command_says_what_a_run_took(tmp_path, program):
    trace = tmp_path / "t.json"
    done = CliRunner().invoke(athread, ["run", str(program()), "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert "emulated: 7000 CPE cycles, 3.11 us" in done.output
    assert json.loads(trace.read_text())["traceEvents"]


def test_the_command_takes_other_figures(program):
    done = CliRunner().invoke(athread, ["run", str(program()), "--chip", "spawn_cycles=0"])
    assert "emulated: 2000 CPE cycles" in done.output
