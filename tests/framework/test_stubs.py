"""The generated types are those of the operators that there are."""

from pathlib import Path

import pytest

from stack.framework import operators, stubs
from stack.framework.expr.public import FUNCTIONS, LAYERS, METHODS

FOLDER = Path(operators.__file__).parent


@pytest.mark.slow
def test_stub_files_are_up_to_date():
    for module, text in stubs.stubs().items():
        kept = FOLDER / f"{module}.pyi"
        assert kept.read_text() == text, "run `python -m stack.framework.stubs`"


def test_every_operator_says_what_it_does():
    for name, public in (FUNCTIONS | METHODS | LAYERS).items():
        assert public.expression.__doc__, name
