"""The newest whole checkpoint of a folder, for runs that go on from whatever there is."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from stack.framework.checkpoint import load
from stack.framework.errors import CheckpointError

SUFFIX = ".safetensors"


def load_newest(
    folder: str | Path, device: str | None = None
) -> tuple[Path, dict[str, Any]] | None:
    """The file and the state of the newest checkpoint in a folder that `load` can read, by the time
    at which it was written; None where there is none.

    Files are those that end in ".safetensors". Warns of newer ones that are not whole. Raises
    CheckpointError for a folder that cannot be read.
    """
    try:
        found = [(path.stat().st_mtime_ns, path) for path in Path(folder).glob(f"*{SUFFIX}")]
    except OSError as error:
        raise CheckpointError(f"cannot look for checkpoints in {folder}: {error}") from error
    for _, path in sorted(found, reverse=True):
        try:
            return path, load(path, device)
        except CheckpointError as error:
            text = f"{error}; an older checkpoint is looked for"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return None
