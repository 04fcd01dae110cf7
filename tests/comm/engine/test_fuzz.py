"""Frames that no rank sends, by the hundred thousand; `make fuzz` feeds ten million."""

import os
import re

import pytest

from tests.comm.engine.fuzz import build, fuzz
from tests.draw import SEED
from tests.sanitizers.build import Sanitizer
from tests.sanitizers.run import obstacle

FRAMES = 200_000
DEADLINE_S = 200


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.skipif("HAL_INSTRUMENTED" in os.environ, reason="it brings a sanitizer of its own")
@pytest.mark.skipif(bool(obstacle(Sanitizer.ADDRESS)), reason=obstacle(Sanitizer.ADDRESS))
def test_no_frame_touches_memory_or_blames_another_rank(tmp_path):
    status, text = fuzz(build(tmp_path), FRAMES, SEED + 1, DEADLINE_S)
    assert status == 0, text
    accepted, refused = map(int, re.search(r"(\d+) accepted, (\d+) refused", text).groups())
    assert min(accepted, refused) > FRAMES // 10
