"""Tasks of one operation run in an order that their `after` allows, whatever order is preferred."""

import hypothesis.strategies as st
from hypothesis import given

from hal.hosted.order import AdversarialOrder, Order
from hal.hosted.queues import Task
from hal.hosted.tasks import run_tasks
from hal.hosted.watch import Doing


@st.composite
def graphs(draw):
    """The `after` of some tasks."""
    count = draw(st.integers(0, 12))
    earlier = lambda i: st.lists(st.integers(0, i - 1), max_size=4) if i else st.just([])
    return [draw(st.none() | earlier(i).map(tuple)) for i in range(count)]


def run(afters, order):
    """The order in which the tasks ran."""
    ran = []
    tasks = [
        Task("launch", str(i), lambda part, i=i: ran.append(i), after=after)
        for i, after in enumerate(afters)
    ]
    doing = Doing()
    spans, failure = run_tasks("tiny:0", order, tasks, None, doing)
    assert doing.steps == len(tasks)
    assert failure is None
    assert [span.name for span in spans] == [task.name for task in tasks]
    return ran


@given(graphs(), st.integers(0, 99))
def test_every_task_runs_once_and_behind_those_that_it_names(afters, seed):
    for order in (Order(), AdversarialOrder(seed)):
        ran = run(afters, order)
        assert sorted(ran) == list(range(len(afters)))
        for index, after in enumerate(afters):
            before = set(ran[: ran.index(index)])
            assert before >= set(range(index) if after is None else after)


@given(graphs())
def test_the_oldest_first_is_the_order_in_which_they_were_recorded(afters):
    assert run(afters, Order()) == list(range(len(afters)))
