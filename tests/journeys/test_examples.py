"""The small examples, one of them in each run."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.draw import stream

EXAMPLES = Path(__file__).parents[2] / "examples"
OF_DIGITS = ["digits", "diffusion"]
NAMES = ["generate", "moe", "lora", *OF_DIGITS]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", stream("examples").sample(NAMES, 1))
def test_an_example_learns_and_draws(commands, name):
    from matplotlib import image  # noqa: PLC0415  not in each process that collects this

    given = ("--device", "cpu:0", "--steps", "40", "--out", "drawn.png")
    ended = commands.ended(commands.start(sys.executable, EXAMPLES / f"{name}.py", *given))
    if name in OF_DIGITS and importlib.util.find_spec("sklearn") is None:
        ended.assert_clear_error("sklearn", "pip install 'hal-accel[examples]'")
        return
    assert ended.code == 0, ended.err
    first, last = (re.findall(rf"^step {n}: loss (\S+)$", ended.out, re.M) for n in (1, 40))
    assert first
    assert all(float(b) < 0.9 * float(a) for a, b in zip(first, last, strict=True)), ended.out
    assert image.imread(commands.folder / "drawn.png").std() > 0
