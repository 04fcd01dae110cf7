"""Programs that are loaded beside others, and built together with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hal_plugin_opencl import joined, programs
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.core.dtypes import DType
from hal.core.errors import CompileError, HalError, InvalidCall
from hal.core.values import KernelSource, OpenOptions
from plugins.opencl.tests.conftest import Bench, buffer, source

PARAMS = (buffer("x", DType.I32, True),)
LANES = 4


def text(value: int, lanes: int = 0, used: str = "of") -> str:
    """A kernel that writes `value`, with names that all such texts have."""
    qualified = f"__attribute__((reqd_work_group_size({lanes}, 1, 1))) " if lanes else ""
    at = "get_group_id(0)" if lanes else "get_global_id(0)"
    return (
        "#pragma OPENCL FP_CONTRACT OFF\n"
        f"#define MORE(x) ((x) + {value % 10})\n"
        "typedef struct pair { int first, second; } pair;\n"
        f"__constant int base[2] = {{{value - value % 10}, 0}};\n"
        "int of(pair p) { return MORE(p.first + p.second); }\n"
        f"__kernel {qualified}void f(__global uchar *x_base, ulong x_offset)\n"
        "{\n"
        "    pair p = {base[0], base[1]};\n"
        f"    ((__global int *)(x_base + x_offset))[{at}] = {used}(p);\n"
        "}\n"
    )


def sources(*values: int) -> tuple[KernelSource, ...]:
    """Every other one is run by groups."""
    found = []
    for i, value in enumerate(values):
        lanes = {"lanes": str(LANES)} if i % 2 else {}
        found.append(source(text(value, LANES * (i % 2)), *PARAMS, **lanes))
    return tuple(found)


def written(bench: Bench, program: KernelSource) -> int:
    x = bench.put(np.zeros(2, np.int32))
    bench.run(program, x, grid=(2, 1, 1))
    first, second = bench.get(x, np.int32)
    assert first == second
    return int(first)


def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are given to the driver from now on."""
    seen: list[str] = []
    build = programs._build

    def noted(context: Any, device: Any, of: KernelSource, whole: str, more: str = "") -> Any:
        seen.append(whole)
        return build(context, device, of, whole, more)

    monkeypatch.setattr(programs, "_build", noted)
    return seen


@pytest.mark.slow
@pytest.mark.turns
def test_programs_of_equal_names_are_built_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = range(11, 41)
    beside, seen = sources(*values), builds(monkeypatch)
    for value, program in zip(values, beside, strict=True):
        assert written(bench, replace(program, beside=beside)) == value
    assert len(seen) == len(joined.groups(beside)) < len(beside) / 2


@pytest.mark.slow
@pytest.mark.turns
def test_a_second_session_builds_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it write their text."""
    beside, options = sources(11, 12, 13, 14), OpenOptions(cache_dir=str(tmp_path))
    seen: list[list[str]] = [[], []]
    for texts in seen:
        programs._whole.cache_clear()
        with monkeypatch.context() as patched, hal.open("opencl:0", options=options) as device:
            noted = builds(patched)
            bench = Bench(device)
            found = [written(bench, replace(program, beside=beside)) for program in beside]
            assert found == [11, 12, 13, 14]
            texts += noted
    assert seen[0]
    assert not seen[1]
    assert programs._whole.cache_info().misses == 0


WRONG: dict[str, Callable[[KernelSource], KernelSource]] = {
    "text": lambda s: replace(s, text=s.text.replace("get_global_id", "no_such_name")),
    "another's function": lambda s: replace(s, text=s.text.replace("int of(", "int mine(")),
    "arguments": lambda s: replace(s, params=(*PARAMS, buffer("y", DType.I32))),
    "entry": lambda s: replace(s, entry="of"),
}


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("lanes", [0, LANES])
def test_one_that_is_wrong_is_refused_and_the_others_are_built(
    bench: Bench, wrong: Callable[[KernelSource], KernelSource], lanes: int
) -> None:
    options = {"lanes": str(lanes)} if lanes else {}
    made = source(text(10, lanes), *PARAMS, **options)
    if lanes:
        made = replace(made, text=made.text.replace("get_group_id(0)", "get_global_id(0) / 4"))
    bad = wrong(made)
    beside = (bad, *sources(*range(11, 15)))
    with pytest.raises((CompileError, InvalidCall)) as caught:
        bench.device.load(replace(bad, beside=beside))
    assert isinstance(caught.value, HalError)
    for value, program in zip(range(11, 15), beside[1:], strict=True):
        assert written(bench, replace(program, beside=beside)) == value


APART = {
    "a pragma of the file": ("int of(", "#pragma OPENCL FP_CONTRACT ON\nint of("),
    "a pragma of the file, further right": ("int of(", "  #pragma OPENCL FP_CONTRACT ON\nint of("),
    "a macro of the driver": ("int of(", "#define __OPENCL_VERSION__ 100\nint of("),
    "a string": ("int of(", '_Pragma("unroll") int of('),
    "a comment": ("int of(", "/* } */ int of("),
    "names of an enumeration": ("int of(", "enum { MINE };\nint of("),
    "a macro that is a name, too": ("int of(", "#define of(p) of((p))\nint of("),
    "another file": ("int of(", '#include "other"\nint of('),
    "an end of a macro": ("int of(", "#undef MORE\nint of("),
    "brackets without an end": ("int of(", "} int of("),
    "letters of no program": ("int of(", "é int of("),
}


@pytest.mark.parametrize(("old", "new"), APART.values(), ids=APART)
def test_texts_that_stay_apart(old: str, new: str) -> None:
    known = sources(11, 12)[0]
    changed = replace(known, text=known.text.replace(old, new))
    assert joined.groups((known,)) == ((known,),)
    assert joined.groups((changed,)) == ()


def test_texts_stay_apart_whose_first_lines_hold_for_others() -> None:
    on = [replace(s, text=s.text.replace("OFF", "ON")) for s in sources(*range(11, 21))]
    off = sources(*range(11, 21))
    for group in joined.groups((*on, *off)):
        assert len({s.text.partition("\n")[0] for s in group}) == 1


@given(st.sets(st.integers(10, 400), max_size=60), st.randoms())
@settings(max_examples=25, deadline=None)
def test_groups_follow_from_the_texts(values: set[int], rng: Any) -> None:
    """Whatever their order."""
    found = list(sources(*sorted(values)))
    groups = joined.groups(tuple(found))
    assert {s for g in groups for s in g} == set(found)
    assert sum(map(len, groups)) == len(found)
    rng.shuffle(found)
    assert joined.groups(tuple(found)) == groups


def test_another_text_makes_few_groups_others() -> None:
    """Of which drivers and caches know nothing yet."""
    found = sources(*range(10, 310))
    groups = joined.groups(found)
    for more in range(10, 30):
        other = source(text(more).replace("uchar *x_base", "uchar  *x_base"), *PARAMS)
        assert len(set(joined.groups((*found, other))) - set(groups)) <= 3 < len(groups) / 5


WRITES = (
    "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))\n"
    "void f(__global uchar *x_base,\n       ulong x_offset)\n"
    "{\n    __local int y[1];\n    y[0] = 7;\n"
    "    ((__global int *)(x_base + x_offset))[get_group_id(0)] = y[0];\n}\n"
)


@pytest.mark.parametrize("before", ["", "#define SIX \\\n    6\n"])
def test_an_entry_of_work_groups_of_one_runs_where_it_is_told_to(bench: Bench, before: str) -> None:
    program = source(before + WRITES, *PARAMS, lanes="1")
    assert joined.guarded(program.text, "f") is not None
    x = bench.put(np.zeros(2, np.int32))
    loaded = bench.device.load(program)
    assert bench.get(x, np.int32).tolist() == [0, 0]
    bench.done(bench.device.launch(bench.device.bind(loaded, (x,)), (2, 1, 1), bench.timeline, ()))
    assert bench.get(x, np.int32).tolist() == [7, 7]


@pytest.mark.parametrize(
    "changed",
    [
        WRITES + "// void f(int a) {",
        WRITES + "void g() { f(0, 0); }",
        WRITES.replace("void f(", "void f(int (*g)(int), "),
        WRITES.replace("\n{", "\n__attribute__((noinline)) {"),
        WRITES.replace("y[", "hal_run["),
        WRITES.replace("void f", "int f"),
    ],
)
def test_a_text_whose_entry_is_not_certain_stays_as_it_is(changed: str) -> None:
    assert joined.guarded(changed, "f") is None


@pytest.mark.parametrize("params", ["", "void", " void "])
def test_an_entry_without_arguments_gets_one(params: str) -> None:
    text = joined.guarded(f"kernel void f({params}) {{ g(); }}", "f")
    assert text == "kernel void f(uchar hal_run) { if (!hal_run) return; g(); }"
