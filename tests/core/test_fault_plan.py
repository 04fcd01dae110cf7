"""Fault plans are text that is read, written and read again; wrong lines are named."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hal.core.errors import InvalidCall, Scope
from hal.core.wrappers.fault_plan import FaultPlan, PlannedFault, parse_plan

positions = st.one_of(
    st.tuples(st.just("nth"), st.integers(1, 9)),
    st.tuples(st.just("every"), st.integers(1, 9)),
    st.tuples(st.just("probability"), st.sampled_from([0.001, 0.25, 1.0])),
)
faults = st.builds(
    lambda kind, scope, position, program, device, seconds: PlannedFault(
        *kind, scope, **dict([position]), program=program, device=device, seconds=seconds
    ),
    st.sampled_from([("hang", "launch"), ("slow", "copy"), ("link-down", "health")]),
    st.sampled_from(Scope),
    positions,
    st.sampled_from(["", "matmul_0"]),
    st.sampled_from(["", "mychip:1"]),
    st.sampled_from([0.0, 0.25, 3.0]),
)


@given(st.integers(0, 99), st.lists(faults, max_size=4))
def test_the_text_of_a_plan_is_that_plan(seed, planned):
    plan = FaultPlan(seed, tuple(planned))
    assert parse_plan(str(plan)) == plan


def test_lines_comments_and_defaults():
    text = "# all\nseed 7; launch-fault at launch # first\n\ndevice-lost at load nth 2"
    plan = parse_plan(text)
    assert plan.seed == 7
    first, second = plan.faults
    assert (first.kind, first.hook, first.nth, first.scope) == (
        "launch-fault",
        "launch",
        1,
        Scope.OPERATION,
    )
    assert second.scope is Scope.DEVICE


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bad", 'a line is "KIND at HOOK'),
        ("fire at launch", "no kind 'fire'"),
        ("compile at launch", "compile cannot happen at 'launch', only at load"),
        ("hang at launch nth", "'nth' has no value"),
        ("hang at launch when 3", "no key 'when'"),
        ("hang at launch nth 1 every 2", "nth and every are two positions"),
        ("hang at launch nth 0", "1 or more"),
        ("hang at launch probability 2", "at most 1"),
        ("hang at launch scope moon", "'moon' is not a valid Scope"),
        ("hang at launch seconds -1", "seconds is -1"),
        ("seed x", "invalid literal"),
    ],
)
def test_a_wrong_line_is_named(line, words):
    with pytest.raises(InvalidCall) as caught:
        parse_plan(f"seed 1\n{line}")
    assert f"line 2 {line!r}" in str(caught.value)
    assert words in str(caught.value)
