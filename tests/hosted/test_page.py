"""What docs/hosted.md says that a vendor writes is what the base classes want."""

import re
from pathlib import Path

import pytest

from hal.hosted.driven import DrivenMachine
from hal.hosted.machine import Machine
from hal.hosted.staged import StagedMachine
from hal.hosted.streams import StreamMachine

PAGE = (Path(__file__).parents[2] / "docs/hosted.md").read_text(encoding="utf-8")
KINDS = (Machine, StreamMachine, DrivenMachine, StagedMachine)


@pytest.mark.parametrize("kind", KINDS)
def test_the_methods_that_a_vendor_writes_are_named(kind):
    (told,) = re.findall(rf"^\| [^|]+ \| `{kind.__name__}` \| (.*) \|$", PAGE, re.MULTILINE)
    wanted = kind.__abstractmethods__
    assert str(len(wanted)) in re.findall(r"\b\d+\b", told)
    if kind is StagedMachine:
        return  # whose file says what they are
    named = set(re.findall(r"`([a-z_]+)`", told))
    shared = Machine.__abstractmethods__ - {"run"} if "all but `run`" in told else set()
    assert (named | shared) - {"run"} == wanted - {"run"}
