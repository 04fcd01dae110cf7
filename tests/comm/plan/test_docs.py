"""What the page on collective plans shows is so."""

import re
from pathlib import Path

import pytest

from stack.comm.choose.override import parse_override
from stack.comm.plan.check import check
from stack.comm.plan.error import PlanError
from stack.comm.plan.text import parse_program, print_program

PAGE = (Path(__file__).parents[3] / "docs" / "collective-plans.md").read_text()


def shown(language: str) -> str:
    """The one block of the page in this language."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return block


def test_the_program_is_right_and_prints_as_it_is_written():
    text = shown("plan")
    assert print_program(parse_program(text)) == text


def test_the_python_runs():
    names = {"text": shown("plan")}
    exec(shown("python"), names)
    assert names["proof"].wide


def test_the_refusal_is_the_one_that_comes():
    with pytest.raises(PlanError) as caught:
        check(parse_program(shown("plan").replace("out[0] after 1", "out[0]")))
    assert f"{caught.value}\n" == shown("refusal")


def test_the_override_is_read():
    assert [rule.algorithm for rule in parse_override(shown("override"))] == [
        "recursive-doubling",
        "ring/4",
        "mine.plan",
        "chain/16",
    ]
