"""A wrong program is refused with rank, step, chunk and reason; what it was made from is right."""

import re
from dataclasses import replace

import pytest

from hal.core.values import CollectiveKind
from stack.comm.plan.check import check
from stack.comm.plan.error import PlanError
from stack.comm.plan.program import ChunkPlace, Op, Span, Step
from stack.comm.plan.text import KINDS, parse_program
from tests.comm.plan.faults import BARRIER, CHAIN, EVERYONE, EXCHANGE, FAULTS, SHARED, SWAP, TWO


@pytest.mark.parametrize("text", [SHARED, EXCHANGE, CHAIN, EVERYONE, SWAP, TWO, BARRIER])
def test_the_programs_that_the_faults_are_planted_in_are_right(text):
    check(parse_program(text))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_refused_where_it_is(fault):
    assert fault.program.count(fault.old) >= 1
    program = parse_program(fault.program.replace(fault.old, fault.new))
    with pytest.raises(PlanError, match=re.escape(fault.reason)) as caught:
        check(program)
    found = caught.value
    assert (found.rank, found.step, found.chunk) == fault.at
    where = f"rank {fault.at[0]}" if fault.at[0] >= 0 else fault.reason
    assert str(found).startswith(where)


def test_operands_that_an_operation_does_not_have_are_refused():
    program = parse_program(TWO)
    bad = Step(Op.SEND, 1, dst=Span(ChunkPlace.OUTPUT, 0), src=Span(ChunkPlace.INPUT, 0))
    steps = ((bad, *program.steps[0][1:]), program.steps[1])
    with pytest.raises(PlanError, match="rank 0, step 0: a send has no operand 'dst'"):
        check(replace(program, steps=steps))


def test_a_local_step_with_a_peer_is_refused():
    program = parse_program(TWO)
    copy = replace(program.steps[0][2], peer=1)
    with pytest.raises(PlanError, match="rank 0, step 2: a copy has no peer, is given 1"):
        check(replace(program, steps=((*program.steps[0][:2], copy), program.steps[1])))


def test_steps_for_another_number_of_ranks_are_refused():
    program = parse_program(TWO)
    with pytest.raises(PlanError, match="steps are listed for 1 ranks, the size is 2"):
        check(replace(program, steps=program.steps[:1]))


def test_every_single_lost_dependency_of_a_program_is_noticed():
    """Each dependency of this program is needed."""
    program = parse_program(EVERYONE)
    for rank, steps in enumerate(program.steps):
        for index, step in enumerate(steps):
            if step.after:
                cut = replace(step, after=())
                these = (*steps[:index], cut, *steps[index + 1 :])
                every = (*program.steps[:rank], these, *program.steps[rank + 1 :])
                with pytest.raises(PlanError, match=r"hazard|nobody wrote"):
                    check(replace(program, steps=every))


def test_kinds_of_the_contract_are_all_known():
    assert {kind.value for kind in CollectiveKind} <= set(KINDS)
