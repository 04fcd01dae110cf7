import gc
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import erf, exp, tanh
from pathlib import Path

import hypothesis.strategies as st
import llvmlite.binding as llvm
import numpy as np
import pytest
from hal_plugin_cpu import isolated, jit, programs
from hal_plugin_cpu.linking import linked
from hal_plugin_cpu.processor import Processor, processor
from hypothesis import given

from hal.cache import Cache
from hal.core.description import SpaceKind
from hal.core.errors import CompileError
from hal.core.values import LLVM_IR, KernelSource


def load(device, text, entry, options=(), format=LLVM_IR):
    return device.load(KernelSource(format, text, entry, (), options))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("  \n", 1),
        ("define void @f(", 1),
        ("define void @f(ptr %a, ptr %g, i64 %b, i64 %e) {\n  ret void\n}\n\n%x = foo", 5),
        (
            "define void @f(ptr %a, ptr %g, i64 %b, i64 %e) {\n  %x = add i64 %q, 1\n  ret void\n}",
            2,
        ),
        ("\0\xff binary", 1),
    ],
)
def test_wrong_text_is_refused_with_its_line(rig, text, line):
    with pytest.raises(CompileError) as caught:
        load(rig.device, text, "f")
    assert caught.value.line == line
    assert caught.value.log


def test_the_verifier_speaks_too(rig):
    text = """define void @f(ptr %a, ptr %g, i64 %b, i64 %e) {
    entry:
      br label %next
    next:
      %x = phi i64 [0, %entry], [1, %other]
      ret void
    other:
      br label %entry
    }"""
    with pytest.raises(CompileError) as caught:
        load(rig.device, text, "f")
    assert "entry" in caught.value.log.lower()


def test_entries_are_checked(rig, texts):
    with pytest.raises(CompileError, match="missing"):
        load(rig.device, texts["add"], "missing")
    with pytest.raises(CompileError, match="type"):
        load(rig.device, "define i32 @f() {\n ret i32 0\n}", "f")
    with pytest.raises(CompileError, match="defines no"):
        load(rig.device, "declare void @f(ptr, ptr, i64, i64)", "f")


def test_only_the_mathematics_library_may_be_called(rig):
    text = """
    declare i32 @{name}(ptr)
    define void @f(ptr %a, ptr %g, i64 %b, i64 %e) {{
      %x = call i32 @{name}(ptr %a)
      ret void
    }}"""
    for name in ("system", "no_such_function", "malloc"):
        with pytest.raises(CompileError, match=name):
            load(rig.device, text.format(name=name), "f")


ENTRY = "define void @f(ptr %a, ptr %g, i64 %b, i64 %e) {{\n{body}\n  ret void\n}}\n"


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("  %x = add i64 %b, 1", True),
        ("  %x = fadd <8 x float> zeroinitializer, splat (float 0x3FF0000000000000)", True),
        ("  %x = alloca [4096 x float], align 64", True),
        ("  %x = alloca [8 x <4 x i8>]", False),
        ("  %x = alloca float, i64 1000000000000", False),
        ("  %x = fadd <1000 x float> zeroinitializer, zeroinitializer", False),
        ("  %x = add i4096 0, 1", False),
        ('  call void asm sideeffect "nop", ""()', False),
        ("  store i64 0, ptr %a, align 8, !nontemporal !0\n  fence seq_cst", True),
        ("  store i64 0, ptr %a, align 8, !nontemporal !0, !tbaa !0", False),
        ("  %x = call ptr @llvm.launder.invariant.group.p0(ptr %a)", True),
        ("  %x = call i64 @llvm.x86.rdtsc()", False),
        ("  %x = call <8 x i32> @llvm.x86.avx512.vpdpbusd.25()", False),
    ],
)
def test_text_is_vetted_before_it_is_compiled_in_this_process(body, known):
    assert jit.is_known(ENTRY.format(body=body)) is known


@pytest.mark.parametrize(
    ("to", "known"), [("(64)", True), ("(256)", True), ("(512)", False), ("", False)]
)
def test_a_stack_is_aligned_to_little_or_in_a_process_of_its_own(to, known):
    """LLVM ends the process for what is more."""
    text = ENTRY.format(body="").replace(" {", f" nounwind alignstack{to} {{", 1)
    assert jit.is_known(text) is known


def test_the_dots_that_the_processor_has_are_known_and_no_others(open_cpu):
    calls = {unit.call for unit in open_cpu().describe().matrix_units if unit.call}
    tiles = (f"{name}.internal" for name in ("tdpbf16ps", "tdpfp16ps", "tdpbssd", "tdpbusd"))
    every = "avx512bf16.dpbf16ps.512", "avx512.vpdpbusd.512", "avx512.vpdpbusd.256", *tiles
    for name in every:
        text = ENTRY.format(body=f"  %x = call i64 @llvm.x86.{name}()")
        assert jit.is_known(text) is (f"llvm.x86.{name}" in calls)


def test_the_powers_of_two_that_the_processor_has_are_known(open_cpu):
    text = ENTRY.format(body="  %x = call i64 @llvm.x86.avx512.mask.scalef.ps.512()")
    assert jit.is_known(text) is bool(open_cpu().describe().scale)


@pytest.mark.parametrize(("size", "fixed"), [("16", True), ("%b", False)])
def test_tile_registers_are_known_where_they_are_and_their_sizes_numbers(open_cpu, size, fixed):
    """LLVM ends the process where it cannot tell a size."""
    has = any(unit.register for unit in open_cpu().describe().matrix_units)
    body = f"  %x = call x86_amx @llvm.x86.tilezero.internal(i16 {size}, i16 64)"
    assert jit.is_known(ENTRY.format(body=body)) is (has and fixed)


@pytest.mark.parametrize(
    "word", ["defane", "i64.", "add?", "lo\N{LATIN SMALL LETTER A WITH ACUTE}d"]
)
def test_words_that_llvm_does_not_know_are_refused_at_once(rig, word, monkeypatch):
    monkeypatch.setattr(isolated, "compile_isolated", None)
    with pytest.raises(CompileError) as caught:
        load(rig.device, ENTRY.format(body=f"\n  %x = {word} i64 %b, 1"), "f")
    assert caught.value.line == 3


def test_code_does_not_follow_from_what_the_thread_compiled_before(texts):
    """One target machine compiles all of a thread's programs."""
    order = [*texts, *reversed(texts)]
    codes = [jit.compile_here(texts[name], name) for name in order]
    assert codes == codes[::-1]
    with ThreadPoolExecutor(1) as others:
        assert others.submit(jit.compile_here, texts[order[0]], order[0]).result(60) == codes[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        '  call void asm sideeffect "no such instruction", ""()',
        "  %x = call <4 x float> @llvm.experimental.vp.splice.v4f32()",
    ],
)
def test_text_that_the_compiler_cannot_stand_harms_nobody(rig, body):
    with pytest.raises(CompileError) as caught:
        load(rig.device, ENTRY.format(body=body), "f")
    assert caught.value.log


def test_a_compiler_that_never_ends_is_ended(rig, monkeypatch):
    monkeypatch.setattr(isolated, "DEADLINE_S", 0.001)
    with pytest.raises(CompileError, match="did not compile"):
        load(rig.device, ENTRY.format(body='  call void asm sideeffect "nop", ""()'), "f")


@pytest.mark.slow
def test_what_is_compiled_apart_works(rig):
    text = """define void @f(ptr %args, ptr %grid, i64 %begin, i64 %end) #0 {
      %out = load ptr, ptr %args
      store i64 7, ptr %out
      ret void
    }
    attributes #0 = { nounwind }"""
    assert not jit.is_known(text)
    cell = rig.upload(np.zeros(1, np.int64))
    bound = rig.device.bind(rig.load(text, "f", "b"), (cell,))
    rig.device.launch(bound, (1, 1, 1), rig.timeline, ())
    assert rig.download(cell, np.int64).tolist() == [7]


def test_every_beginning_of_a_program_is_refused_or_loads(rig, texts):
    text = texts["mix"]
    for end in range(0, len(text), 37):
        with pytest.raises(CompileError):
            load(rig.device, text[:end], "mix")


MATH = """
declare float @llvm.exp.f32(float)
declare double @erf(double)
declare float @tanhf(float)
define void @math(ptr %args, ptr %grid, i64 %begin, i64 %end) {
  %a = load ptr, ptr %args
  %b = getelementptr float, ptr %a, i64 1
  %c = getelementptr double, ptr %a, i64 1
  %h = getelementptr half, ptr %a, i64 8
  %x = load float, ptr %a
  %e = call float @llvm.exp.f32(float %x)
  store float %e, ptr %a
  %y = load float, ptr %b
  %t = call float @tanhf(float %y)
  store float %t, ptr %b
  %z = load double, ptr %c
  %f = call double @erf(double %z)
  store double %f, ptr %c
  %s = fptrunc double %z to half
  store half %s, ptr %h
  ret void
}
"""


def test_mathematics_works(rig):
    cells = rig.upload(np.zeros(5, np.float64))
    view = rig.device.map(cells.region(), True)
    np.frombuffer(view, np.float32)[:2] = 0.5, 0.25
    np.frombuffer(view, np.float64)[1] = 0.1
    program = rig.load(MATH, "math", "b")
    rig.device.launch(rig.device.bind(program, (cells,)), (1, 1, 1), rig.timeline, ())
    got = rig.download(cells, np.uint8)
    assert got.view(np.float32)[:2] == pytest.approx([exp(0.5), tanh(0.25)], rel=1e-6)
    assert got.view(np.float64)[1] == pytest.approx(erf(0.1), rel=1e-14)
    assert got.view(np.float16)[8] == np.float16(0.1)


def test_scratch_memory_up_to_the_limit(rig):
    nbytes = rig.device.describe().space(SpaceKind.SCRATCHPAD).nbytes
    text = f"""
    define void @f(ptr %args, ptr %grid, i64 %begin, i64 %end) {{
      %room = alloca [{nbytes} x i8], align 64
      %last = getelementptr i8, ptr %room, i64 {nbytes - 1}
      store volatile i8 1, ptr %room
      store volatile i8 7, ptr %last
      %x = load volatile i8, ptr %last
      %out = load ptr, ptr %args
      %cell = getelementptr i8, ptr %out, i64 %begin
      store i8 %x, ptr %cell
      ret void
    }}"""
    out = rig.upload(np.zeros(1, np.uint8))
    bound = rig.device.bind(rig.load(text, "f", "b"), (out,))
    rig.device.launch(bound, (1, 1, 1), rig.timeline, ())
    assert rig.download(out, np.uint8)[0] == 7


def files(folder):
    return sorted(p for p in Path(folder).rglob("*") if p.is_file())


@pytest.fixture
def compiled(monkeypatch):
    """The programs that were compiled, by entry."""
    seen = []
    compile_object = programs.compile_object
    monkeypatch.setattr(
        programs, "compile_object", lambda t, e: seen.append(e) or compile_object(t, e)
    )
    return seen


def check_increment(rig, texts):
    cell = rig.upload(np.zeros(10, np.int64))
    bound = rig.device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 3))
    rig.device.launch(bound, (10, 1, 1), rig.timeline, ())
    assert (rig.download(cell, np.int64) == 3).all()


def test_another_text_entry_or_target_misses(open_rig, texts, compiled, tmp_path, monkeypatch):
    rig = open_rig(cache_dir=str(tmp_path))
    rig.load(texts["increment"], "increment", "bi")
    rig.load(texts["increment"] + "\n; changed", "increment", "bi")
    other = replace(processor(), name="another processor")
    monkeypatch.setattr("hal_plugin_cpu.programs.processor", lambda: other)
    rig.load(texts["increment"], "increment", "bi")
    assert len(compiled) == 3
    assert len(files(tmp_path / "cpu")) == 3


@pytest.mark.parametrize("useless", ["empty", "text", "elf", "other"])
def test_an_entry_that_cannot_be_linked_is_compiled_again(
    open_rig, texts, compiled, tmp_path, useless
):
    check_increment(open_rig(cache_dir=str(tmp_path)), texts)
    cache = Cache(tmp_path, "cpu")
    (name,) = cache.names()
    whole = cache.get(name)
    code = {
        "empty": b"",
        "text": b"no object code",
        "elf": whole[:64],
        "other": jit.compile_here(texts["add"], "add"),
    }
    cache.write(name, code[useless])
    check_increment(open_rig(cache_dir=str(tmp_path)), texts)
    assert cache.get(name) == whole
    check_increment(open_rig(cache_dir=str(tmp_path)), texts)
    assert compiled == ["increment"] * 2


X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM links for other processors")

COSINE = """
declare double @cosh(double)
@table = private unnamed_addr constant [2 x double] [double 1.0, double 2.0]
define void @f(ptr %args, ptr %grid, i64 %begin, i64 %end) {
  %out = load ptr, ptr %args
  %x = load double, ptr getelementptr (double, ptr @table, i64 1)
  %y = call double @cosh(double %x)
  store double %y, ptr %out
  ret void
}
"""
"""A program with constants and a function of another library."""


@pytest.mark.parametrize("linker", ["own", "llvm"])
def test_code_finds_its_constants_and_functions(open_rig, tmp_path, monkeypatch, linker):
    if linker == "llvm":
        monkeypatch.setattr(programs, "linked", lambda code, entry: None)
    rig = open_rig(cache_dir=str(tmp_path))
    cell = rig.upload(np.zeros(1))
    bound = rig.device.bind(rig.load(COSINE, "f", "b"), (cell,))
    rig.device.launch(bound, (1, 1, 1), rig.timeline, ())
    assert rig.download(cell, np.float64)[0] == np.cosh(2.0)


@X86
@pytest.mark.parametrize("is_closed", [True, False])
def test_the_objects_of_programs_need_no_linker(is_closed):
    code = linked(jit.compile_here(COSINE, "f"), "f")
    assert code is not None
    address = code.entry
    assert rights_at(address) == ["r-xp"], "what runs is written by nobody"
    if is_closed:
        code.close()
    del code
    assert rights_at(address) == []


def rights_at(address):
    """How the memory there may be used."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [(*(int(x, 16) for x in span.split("-")), rights) for span, rights, *_ in maps]
    return [rights for begin, end, rights in spans if begin <= address < end]


@X86
def test_an_unknown_function_is_for_llvm_to_refuse():
    text = COSINE.replace("cosh", "no_such_function")
    with pytest.raises(CompileError, match="no_such_function"):
        jit.compile_here(text, "f")
    code = jit.compile_here(COSINE, "f").replace(b"cosh", b"cosq")
    assert linked(code, "f") is None
    with pytest.raises(CompileError):
        jit.Jit().link(code, "f")


@X86
@given(st.data())
def test_a_damaged_object_is_linked_or_refused(data):
    code = bytearray(jit.compile_here(COSINE, "f"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(code) - 1))
        code[at] = data.draw(st.integers(0, 255))
    found = linked(bytes(code[: data.draw(st.integers(0, len(code)))]), "f")
    if found is not None:
        found.close()


AGAIN = """
import sys
import numpy as np
from hal_plugin_cpu.plugin import open_device
from hal.core.values import LLVM_IR, KernelSource, OpenOptions
device = open_device(0, OpenOptions(cache_dir=sys.argv[1]))
device.load(KernelSource(LLVM_IR, sys.argv[2], "f", ()))
print("llvmlite.binding" in sys.modules, device.describe())
"""


@X86
@pytest.mark.slow
def test_llvm_is_not_loaded_where_all_is_in_the_cache(tmp_path):
    command = [sys.executable, "-c", AGAIN, str(tmp_path), COSINE]
    told = [subprocess.check_output(command, text=True, timeout=60).split(" ", 1) for _ in "12"]
    assert [loads for loads, _ in told] == ["True", "False"]
    assert told[0][1].partition("facts=")[2] == told[1][1].partition("facts=")[2]


def test_two_entries_in_one_text(rig, texts):
    text = texts["increment"] + texts["increment"].replace("@increment", "@other").replace(
        "add i64 %x, %p1", "mul i64 %x, %p1"
    )
    cell = rig.upload(np.full(4, 5, np.int64))
    for entry in ("increment", "other"):
        bound = rig.device.bind(rig.load(text, entry, "bi"), (cell, 3))
        rig.device.launch(bound, (4, 1, 1), rig.timeline, ())
    assert (rig.download(cell, np.int64) == 24).all()


def test_threads_are_in_llvm_at_once_and_write_the_same_code(texts, monkeypatch):
    wanted = jit.compile_here(texts["increment"], "increment")
    together, unlocked = threading.Barrier(2), jit._unlocked

    def met(name):
        function = unlocked(name)

        def call(*args):
            together.wait(60)  # each waits here for the other
            return function(*args)

        return call

    monkeypatch.setattr(jit, "_unlocked", met)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(jit.compile_here, [texts["increment"]] * 2, ["increment"] * 2))
    assert done == [wanted] * 2


def resident_nbytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_compilation_leaks_nothing(texts):
    def many(n):
        for _ in range(n):
            jit.compile_here(texts["increment"], "increment")
        gc.collect()

    many(30)
    before = resident_nbytes()
    many(200)
    assert resident_nbytes() - before < 2 << 20  # it was 11 MiB


@pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM knows this processor alone")
def test_llvm_knows_what_it_is_told_of_each_processor(capfd):
    """It takes features that it does not know for none, with a line in the log."""
    jit.compile_here(ENTRY.format(body=""), "f")  # it is initialised
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    for name in ("znver3", "znver4"):
        flags = Processor(name, {"avx2": True, "avx512f": False}, "", "").flags
        assert flags.split(",")[:2] == ["+avx2", "-avx512f"]
        assert ("+prefer-no-gather" in flags) is (name == "znver4")
        target.create_target_machine(cpu=name, features=flags)
    assert capfd.readouterr().err == ""
