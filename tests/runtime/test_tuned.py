"""Records of measured schedules on disk, and engines that take them from there."""

import copy
import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hal
from hal.cache import Cache
from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.compiler.program_text import from_text
from stack.compiler.templates.blocking import Blocks, MatmulShape, choose_blocks
from stack.compiler.templates.schedule import (
    NO_CHOICES,
    LoopProblem,
    LoopSizes,
)
from stack.runtime import engine_of
from stack.runtime.tuned import (
    Record,
    TunedCandidate,
    read_choices,
    read_record,
    records_of,
    to_json,
    write_record,
)

F32 = DType.F32
SHAPE = MatmulShape(1, 30, 40, 50, "k", "n", F32, F32)
ODD = Blocks(3, 8, 4, 2, 16, 6, 12, 24)
"""Blocks that no rule gives for SHAPE: three parts in depth, and edges on both sides."""


@pytest.fixture(scope="module")
def info():
    with hal.open("cpu:0") as device:
        return device.info


def record_of(info, chosen=1):
    rules = TunedCandidate(choose_blocks(SHAPE, info), 1.0, 1.0, 9)
    return Record(
        SHAPE,
        1e-3,
        (rules, TunedCandidate(ODD, 1.5, 0.5, 9), TunedCandidate(ODD, 2, None, 0, "x")),
        chosen,
    )


def test_a_record_comes_back_as_it_was(tmp_path, info):
    loops = Record(
        LoopProblem("add_9", "ab", 9, 3, 3),
        2e-6,
        (TunedCandidate(LoopSizes(), 1, 1, 3), TunedCandidate(LoopSizes(8), 1.25, 0.75, 3)),
        1,
    )
    records = records_of(str(tmp_path), info)
    for record in (record_of(info), loops):
        write_record(records, record)
        assert read_record(records, record.problem) == record
    choices = read_choices(str(tmp_path), info)
    assert choices.schedules == {SHAPE: ODD, loops.problem: LoopSizes(8)}


def test_the_rules_own_schedule_is_no_choice(tmp_path, info):
    write_record(records_of(str(tmp_path), info), record_of(info, chosen=0))
    assert read_choices(str(tmp_path), info) == NO_CHOICES


def test_another_device_does_not_see_it(tmp_path, info):
    write_record(records_of(str(tmp_path), info), record_of(info))
    assert read_choices(str(tmp_path), replace(info, fingerprint="another")) == NO_CHOICES
    few = replace(info, limits=replace(info.limits, instances=97))
    assert read_choices(str(tmp_path), few) == NO_CHOICES


@pytest.mark.parametrize("damage", [b"", b"x", b"\n", b"cut", b"{}"])
def test_a_damaged_record_counts_as_missing(tmp_path, info, damage):
    records = records_of(str(tmp_path), info)
    write_record(records, record_of(info))
    (path,) = records.path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == b"cut" else damage)
    assert read_record(records, SHAPE) is None
    assert read_choices(str(tmp_path), info) == NO_CHOICES
    write_record(records, record_of(info))
    assert read_record(records, SHAPE) == record_of(info)


def without(facts, *keys):
    """The facts, less the one at that place."""
    changed = copy.deepcopy(facts)
    inner = changed
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return changed


def given(facts, value, *keys):
    """The facts with another value at that place."""
    changed = copy.deepcopy(facts)
    inner = changed
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return changed


OTHER_FORMS = {
    "no-key": lambda f: without(f, "chosen"),
    "more": lambda f: {**f, "more": 1},
    "empty": lambda f: {},
    "list": lambda f: [],
    "family": lambda f: given(f, ["matmul"], "family"),
    "another-family": lambda f: given(f, "loops", "family"),
    "no-result": lambda f: given(f, 7, "chosen"),
    "negative-result": lambda f: given(f, -1, "chosen"),
    "true-result": lambda f: given(f, True, "chosen"),
    "no-results": lambda f: given(f, [], "results"),
    "renamed": lambda f: given(without(f, "results", 1, "schedule", "kc"), 1, "results", 1, "a"),
    "no-block": lambda f: without(f, "results", 1, "schedule", "kc"),
    "text": lambda f: given(f, "8", "results", 1, "schedule", "kc"),
    "negative": lambda f: given(f, -8, "results", 1, "schedule", "kc"),
    "float": lambda f: given(f, 8.0, "results", 1, "schedule", "kc"),
    "dtype": lambda f: given(f, "f33", "problem", "dtype"),
    "number-as-dtype": lambda f: given(f, 3, "problem", "dtype"),
    "another-problem": lambda f: given(f, 31, "problem", "m"),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_record_of_another_form_is_removed(tmp_path, info, name):
    records = records_of(str(tmp_path), info)
    write_record(records, record_of(info))
    (entry,) = records.names()
    changed = OTHER_FORMS[name](json.loads(records.get(entry)))
    for content in (json.dumps(changed), "no json", "[" * 5000):
        records.write(entry, content.encode())
        assert read_choices(str(tmp_path), info) == NO_CHOICES
        assert records.names() == []


def test_writers_and_readers_at_once_see_whole_records(tmp_path, info):
    folder = records_of(str(tmp_path), info)
    records = [replace(record_of(info), seconds=float(i)) for i in range(8)]
    write_record(folder, records[0])
    seen = []

    def write(record):
        for _ in range(10):
            write_record(folder, record)

    def read():
        seen.extend(read_record(folder, SHAPE) for _ in range(50))

    threads = [threading.Thread(target=write, args=(r,), daemon=True) for r in records]
    threads += [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == 100
    assert all(record in records for record in seen)
    assert [p.suffix for p in folder.path.iterdir()] == [".json"]


def test_json_names_the_family(info):
    facts = to_json(record_of(info))
    assert (facts["family"], facts["problem"]["dtype"]) == ("matmul", "f32")


def product():
    """relu(a @ b) of SHAPE."""
    a, b = build.input(0, Type((30, 50), F32)), build.input(1, Type((50, 40), F32))
    c = build.matmul(a, b)
    return GraphRequest((build.maximum(c, build.full_like(c, 0)),), (a, b))


def computed(cache_dir, device_name="cpu:0"):
    """The product by an engine with this cache, and the names of what it has there."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((30, 50)), rng.standard_normal((50, 40))
    with engine_of(hal.open(device_name), cache_dir=str(cache_dir)) as engine:
        plan = engine.plan(product())
        (out,) = plan.run([engine.put(a, F32), engine.put(b, F32)])
        graphs = {p.name for p in Path(cache_dir, "graphs").iterdir()}
        return engine.get(out), np.maximum(a @ b, 0), graphs


@pytest.mark.slow
@pytest.mark.turns
def test_an_engine_takes_what_was_chosen_and_computes_the_same(tmp_path, info):
    untuned, expected, before = computed(tmp_path)
    write_record(records_of(str(tmp_path), info), record_of(info))
    tuned, _, after = computed(tmp_path)
    np.testing.assert_allclose(untuned, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tuned, expected, rtol=1e-4, atol=1e-5)
    assert len(after - before) == 1, "compiled anew, beside the untuned graph"
    assert _grids(tmp_path, after - before) == [(6, 1, 1)], "3 blocks down and 2 across"
    assert _grids(tmp_path, before) != [(6, 1, 1)]
    write_record(records_of(str(tmp_path), info), record_of(info, chosen=0))
    again, _, last = computed(tmp_path)
    np.testing.assert_array_equal(again, untuned)
    assert last == after


def _grids(cache_dir, names):
    """The grids of the compiled graphs of these names."""
    cache = Cache(cache_dir, "graphs")
    return [call.grid for name in names for call in from_text(cache.get(name)).calls]
