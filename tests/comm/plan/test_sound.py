"""What the checker accepts runs right: programs with random changes, steps in random orders."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.values import CollectiveKind as Kind
from stack.comm.plan.check import check
from stack.comm.plan.error import PlanError
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import build
from stack.comm.plan.interpret import interpret
from stack.comm.plan.program import (
    REDUCING,
    ChunkPlace,
    Op,
    Program,
    Span,
    block_length,
    blocks,
    even_lengths,
)
from stack.comm.plan.text import parse_program
from tests.comm.plan.faults import FAULTS
from tests.comm.plan.requests import CASES, layouts

KINDS = [(kind, name) for kind, name in CASES if kind is not Kind.BARRIER]


def changed(program: Program, chance: random.Random) -> Program:
    """The program with one step changed, dropped, or exchanged with the next one."""
    rank = chance.choice([r for r in range(program.size) if program.steps[r]])
    steps = list(program.steps[rank])
    index = chance.randrange(len(steps))
    step = steps[index]
    match chance.randrange(7):
        case 0:
            lost = chance.choice(step.after) if step.after else None
            steps[index] = replace(step, after=tuple(a for a in step.after if a != lost))
        case 1:
            operand = chance.choice(["dst", "src"])
            span = Span(chance.choice(list(ChunkPlace)), chance.randrange(4), chance.randint(1, 2))
            steps[index] = replace(step, **{operand: span})
        case 2:
            steps[index] = replace(step, final=not step.final)
        case 3:
            steps[index] = replace(step, op=chance.choice(list(Op)))
        case 4 if step.peer >= 0:
            steps[index] = replace(step, peer=chance.randrange(program.size))
        case 5 if index + 1 < len(steps):
            steps[index], steps[index + 1] = steps[index + 1], step
        case _ if index:
            steps[index] = replace(step, after=(*step.after, chance.randrange(index)))
    whole = [*program.steps[:rank], tuple(steps), *program.steps[rank + 1 :]]
    return replace(program, steps=tuple(whole))


def values(program: Program, lengths) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs in which each element says rank and block, and the outputs that they have to give."""
    pieces, reducing = program.pieces, program.kind in REDUCING

    def of(rank, place, value):
        parts = [
            np.full(block_length(lengths[b // pieces], pieces, b % pieces), value(b), np.int64)
            for b in blocks(program, rank, place)
        ]
        return np.concatenate([*parts, np.zeros(0, np.int64)])

    # The ranks' parts of a sum are powers of 100: a part that is missing or there twice shows.
    total = sum(100**rank for rank in range(program.size))
    ranks = range(program.size)
    given = [
        of(r, ChunkPlace.INPUT, lambda b, r=r: (100**r if reducing else 1) * (b + 1)) for r in ranks
    ]
    wanted = [
        of(r, ChunkPlace.OUTPUT, lambda b: (total if reducing else 1) * (b + 1)) for r in ranks
    ]
    return given, wanted


@settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.sampled_from(KINDS), st.integers(2, 4), st.booleans(), st.booleans(), st.integers(0, 10**6)
)
def test_what_is_accepted_runs_right_in_any_order(case, size, in_place, wide, seed):
    (kind, name), chance = case, random.Random(seed)
    places = layouts(size)[2] if name == "hierarchical" else ()
    request = Request(kind, size, 0, 1, in_place, wide and kind in REDUCING, places=places)
    program = build(name, request)
    for _ in range(chance.randint(1, 2)):
        program = changed(program, chance)
    try:
        check(program)
    except PlanError:
        return
    lengths = even_lengths(kind, size, 5)
    given_values, wanted = values(program, lengths)
    for order in range(4):
        outputs = interpret(program, given_values, lengths, chance=random.Random(order))
        for rank, (output, want) in enumerate(zip(outputs, wanted, strict=True)):
            assert output.tolist() == want.tolist(), rank


@pytest.mark.parametrize(
    "name",
    [
        "a sum that is sent before it is there",
        "a source that is overwritten while it is sent",
        "a source that is overwritten in place, with overlap",
        "two writers of a chunk",
    ],
)
def test_a_hazard_that_is_refused_goes_wrong_in_some_order(name):
    """So that the test above means something: the interpreter is no kinder than an engine."""
    fault = next(fault for fault in FAULTS if fault.name == name)
    program = parse_program(fault.program.replace(fault.old, fault.new))
    lengths = even_lengths(program.kind, program.size, 4)
    inputs, wanted = values(program, lengths)
    results = set()
    for order in range(30):
        outputs = interpret(program, inputs, lengths, chance=random.Random(order))
        pairs = zip(outputs, wanted, strict=True)
        results.add(all(output.tolist() == want.tolist() for output, want in pairs))
    assert False in results
