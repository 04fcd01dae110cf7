"""Checkpoints with something changed: `load` refuses them by `CheckpointError`, or gives a tree.

`python -m tests.framework.checkpoint_mutants COUNT [SEED]` looks at COUNT of them.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

import stack.framework as ht
from stack.framework import checkpoint

STATE = (
    '{"dict": [["model", {"dict": [["w", {"tensor:": "model.w"}], [3, {"list": [1, 2.5, null, '
    'true, "text", {"tuple": [{"tensor:": "b"}]}]}]]}], ["step", 7]]}'
)
WHOLE = save(
    {"model.w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, ml_dtypes.bfloat16)},
    {"state": STATE},
)
WORDS = (
    "null", "true", "NaN", "-1", "0", "1e400", str(1 << 63), "9" * 5000, "[]", "{}", '"dict"',
    '"tuple"', '"tensor:"', '"state"', '"__metadata__"', "F8_E4M3", "I64", "BOOL", "\\ud800",
    "[" * 300,    '{"dict": [["a", ' * 150, ",", ":", "]", "}", "",
)  # fmt: skip


def mutants(rng, count, whole=WHOLE):
    """That many files, each with bits, bytes, words or whole values of one changed, which has no
    checksums by default."""
    for _ in range(count):
        yield rng.choice((_flipped, _cut, _spliced, _in_header, _in_state))(rng, whole)


def _flipped(rng, whole):
    data = bytearray(whole)
    begin = rng.choice((0, len(data) - 40))  # anywhere, or in the tensors
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(begin, len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut(rng, whole):
    at = rng.randrange(len(whole))
    return whole[:at] if rng.random() < 0.5 else whole + rng.randbytes(rng.randint(1, 40))


def _spliced(rng, whole):
    at, end = sorted(rng.sample(range(len(whole)), 2))
    return whole[:at] + rng.choice((b"", rng.randbytes(8), whole[at:end] * 2)) + whole[end:]


def _in_header(rng, whole):
    nbytes = int.from_bytes(whole[:8], "little")
    return _with_header(_changed(whole[8 : 8 + nbytes].decode(), rng), whole[8 + nbytes :])


def _in_state(rng, whole):
    nbytes = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + nbytes])
    header["__metadata__"]["state"] = _changed(header["__metadata__"]["state"], rng)
    return _with_header(json.dumps(header), whole[8 + nbytes :])


def _with_header(text, data):
    header = text.encode(errors="surrogatepass")
    return len(header).to_bytes(8, "little") + header + data


def _changed(text, rng):
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(text))
        end = at + rng.choice((0, 1, 2, 5, 12))
        text = text[:at] + rng.choice(WORDS) + text[end:]
    return text


def refused_or_whole(path, data):
    """Whether the file was refused. Raises whatever else happens."""
    path.write_bytes(data)
    try:
        tree = checkpoint.load(path)
    except ht.CheckpointError as error:
        if str(path) not in str(error):
            raise AssertionError(f"it does not name the file: {error}") from error
        return True
    assert isinstance(tree, dict)
    return False


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        made = mutants(random.Random(seed), count)
        refused = sum(refused_or_whole(Path(folder, "c"), mutant) for mutant in made)
    sys.stdout.write(f"{refused} of {count} files refused, {count - refused} read\n")


if __name__ == "__main__":
    main()
