"""Tapes: the same values as graphs, on paths that are found again."""

import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from stack.recorder.tape import Named, Tree, number_key, read, write
from stack.recorder.window import Window, steps_between

F4 = Type((4,), DType.F32)
LEAF = g.input(1, F4)


def test_a_path_that_is_known_gives_the_same_numbers_and_explores_nothing():
    tree, explored = Tree(), []

    def add(x, y):
        explored.append(y)
        return g.add(x, g.full_like(x, y))

    for _ in range(3):
        tape = tree.begin()
        x = tape.give(LEAF, constant=False)
        y = tape.append((add, x, number_key(2.0)))
        assert (x, y, tape.types) == (0, 1, [F4, F4])
    assert explored == [2.0]
    assert tree.points == 2
    nodes = tape.nodes([y])
    assert nodes[y] is g.add(LEAF, g.full_like(LEAF, 2.0))


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), (0, False), (2**60, float(2**60))]
)
def test_numbers_that_python_finds_equal_are_told_apart(one, other):
    assert number_key(one) != number_key(other)
    assert number_key(one) == number_key(one)
    assert number_key(float("nan")) == number_key(float("nan"))


def test_what_gives_an_operand_back_is_refused_whenever_it_comes():
    tree = Tree()
    for _ in range(2):
        tape = tree.begin()
        x = tape.give(LEAF, constant=False)
        assert tape.append((same, x)) == -1
        assert tape.keys[1:] == []


def same(x):
    return x


def test_windows_are_read_and_written_by_nodes():
    tape = Tree().begin()
    x = tape.give(LEAF, constant=False)
    part = g.slice(LEAF, (1,), (3,))
    window = Window.whole((4,)).through(steps_between(LEAF, part))
    shown = tape.append((read, x, window))
    doubled = tape.append((g.add, shown, shown))
    whole = tape.append((write, x, doubled, window))
    nodes = tape.nodes([whole])
    assert nodes[shown] is part
    assert nodes[whole] is window.write(LEAF, g.add(part, part))


def test_operands_with_names_come_last():
    tape = Tree().begin()
    x = tape.give(LEAF, constant=False)

    def scaled(x, *, by):
        return g.mul(x, g.full_like(x, by))

    n = tape.append((Named(scaled, ("by",)), x, number_key(3)))
    assert tape.nodes([n])[n] is g.mul(LEAF, g.full_like(LEAF, 3))


def test_plans_are_found_by_place_and_by_what_is_alive():
    tree, made = Tree(), []

    class Plan:
        pass

    def make():
        made.append(Plan())
        return made[-1], (0,)

    def plan(*alive):
        return tree.plan(at, alive, make, lambda: (tree.kin, ()))

    at = tree.begin().at
    first, order = plan(1)
    assert plan(1) == (first, order) == (made[0], (0,))
    assert plan(1, 2)[0] is made[1]
    assert len(made) == 2
    made.clear()  # its engine has let go of the plan
    del first
    assert plan(1)[0] is made[0]
