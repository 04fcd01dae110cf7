"""A child process that runs cases on a mutant: python -m tests.mutants.run MUTANT CASE ...

Prints a line when a case begins and one when it is over, both as JSON.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from hal_conformance import faults
from hal_conformance.case import Case
from hal_conformance.catalog import catalog
from hal_conformance.judge import Result, judge
from hal_conformance.rig import Rig
from tests.conformance.plugins import Site
from tests.mutants.zoo import Mutant, let_loose, setting, word, zoo

PATIENCE_S = 0.5
"""How long a case waits here for what must happen: long for a mutant."""


def run(found: Mutant, case: Case, cache: str) -> Result:
    """The case on the mutant, in this process."""
    with let_loose(found), impatient():
        return judge(case, setting(found, cache))


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """For the body, waits that have no deadline of their own give up sooner."""
    with contextlib.ExitStack() as stack:
        for wait in (Rig.done, Rig.failed, Rig.until, faults.caught):
            first = wait.__defaults__[:-1]
            stack.enter_context(patch.object(wait, "__defaults__", (*first, PATIENCE_S)))
        yield


def install(found: Mutant, folder: Path) -> None:
    """Install the mutant's plugin, if it has one, into a folder on the import path."""
    if found.module:
        Site(folder).install(word(found), found.module)


def main(name: str, *ids: str) -> None:
    """Run the cases in this order."""
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    found, cases = zoo()[name], {case.id: case for case in catalog()}
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        install(found, Path(folder))
        for case in ids:
            print(json.dumps({"begin": case}), file=tell, flush=True)
            result = run(found, cases[case], f"{folder}/cache")
            line = {"end": case, "outcome": result.outcome.value, "detail": result.detail}
            print(json.dumps({**line, "seconds": result.seconds}), file=tell, flush=True)
        os._exit(0)  # whatever threads the mutant left behind


if __name__ == "__main__":
    main(*sys.argv[1:])
