"""Measurements lead to what is fastest on the machine, whatever the model believed."""

import pytest

from hal.core.values import CollectiveKind as Kind
from stack.comm.choose.chooser import AlgorithmChooser, Demand
from stack.comm.choose.measure import measure
from stack.comm.choose.predict import predict
from stack.comm.plan.check_order import order_of
from stack.comm.plan.program import even_lengths
from tests.comm.choose.networks import FLOAT, network

BELIEVED = network(4, latency_s=1e-7, overhead_s=1e-9)
"""Latencies cost next to nothing, so the model prefers what sends the fewest bytes."""
REAL = network(4, latency_s=1e-3, overhead_s=1e-5)
"""The machine of these tests: a model of other numbers, on which few turns count."""


def run(program, call):
    """The seconds of a program on the real machine."""
    lengths = even_lengths(call.kind, program.size, call.nbytes // call.element.nbytes)
    return predict(program, order_of(program), lengths, call.element, REAL)


def test_what_was_measured_is_what_is_chosen():
    call = Demand(Kind.ALL_REDUCE, 1 << 16, FLOAT)
    model = AlgorithmChooser(BELIEVED)
    best = min(model.estimates(call), key=lambda o: run(model.program(o.algorithm, call), call))
    assert best.algorithm != model.algorithm(call)
    rows = measure(model, [call], run, tries=1, candidates=100)
    assert {row.algorithm for row in rows} == {o.algorithm for o in model.estimates(call)}
    assert AlgorithmChooser(BELIEVED, rows).algorithm(call) == best.algorithm


def test_tries_take_turns_and_the_first_does_not_count():
    call, ran = Demand(Kind.BROADCAST, 1 << 10, FLOAT), []
    seconds = iter([9.0, 9.0, 1.0, 10.0, 3.0, 30.0, 2.0, 20.0])

    def clock(program, _):
        ran.append(program.name)
        return next(seconds)

    chooser = AlgorithmChooser(BELIEVED)
    rows = measure(chooser, [call], clock, tries=3, candidates=2)
    fastest = [estimate.algorithm for estimate in chooser.estimates(call)[:2]]
    assert ran == fastest * 4
    assert [(r.algorithm, r.seconds) for r in rows] == list(zip(fastest, [2.0, 20.0], strict=True))
    assert all((r.kind, r.nbytes) == (call.kind, call.nbytes) for r in rows)


def test_a_program_that_fails_is_not_hidden():
    def fail(program, call):
        raise OSError(f"{program.name} of {call.nbytes} bytes")

    with pytest.raises(OSError, match="of 8 bytes"):
        measure(AlgorithmChooser(BELIEVED), [Demand(Kind.ALL_REDUCE, 8, FLOAT)], fail)
