"""Files of the format GGUF against its description: values one by one, and every byte cut off."""

import struct
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest

from stack.framework import checkpoint
from stack.framework.errors import CheckpointError
from stack.storage.errors import StorageError
from stack.storage.gguf import read_gguf

RNG = np.random.default_rng(0)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def written(tensors, alignment=64, version=3):
    """A file of tensors (name, shape, number of the type, bytes), with an entry of each kind."""
    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("gpt"),
        text("general.alignment") + struct.pack("<II", 4, alignment),
        text("a.list") + struct.pack("<IIQ3h", 9, 3, 3, 1, -2, 3),
        text("words") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("yz"),
        text("eps") + struct.pack("<If", 6, 1e-5),
        text("yes") + struct.pack("<I?", 7, True),
    ]
    infos, data = b"", b""
    for name, shape, kind, content in tensors:
        data += bytes(-len(data) % alignment)
        infos += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        infos += struct.pack("<IQ", kind, len(data))
        data += content
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    head += b"".join(entries) + infos
    return head + bytes(-len(head) % alignment) + data


def blocks(n, nbytes, halves):
    """Random blocks whose float16 numbers, at these bytes, are small."""
    made = RNG.integers(0, 256, (n, nbytes), np.uint8)
    for at in halves:
        made[:, at : at + 2] = RNG.normal(size=(n, 1)).astype("<f2").view(np.uint8)
    return made


def half(block, at):
    return float(np.frombuffer(block[at : at + 2].tobytes(), "<f2")[0])


def q8_0(b):
    return [half(b, 0) * int(b[2 + i : 3 + i].view(np.int8)[0]) for i in range(32)]


def q4_0(b):
    return [half(b, 0) * ((int(b[2 + i % 16]) >> i // 16 * 4 & 15) - 8) for i in range(32)]


def q4_1(b):
    return [half(b, 0) * (int(b[4 + i % 16]) >> i // 16 * 4 & 15) + half(b, 2) for i in range(32)]


def q4_k(b):
    bits = [int(x) for x in b[4:16]]
    made = []
    for i in range(256):
        j = i // 32
        if j < 4:
            scale, least = bits[j] & 63, bits[j + 4] & 63
        else:
            scale = bits[j + 4] & 15 | (bits[j - 4] >> 6) << 4
            least = bits[j + 4] >> 4 | (bits[j] >> 6) << 4
        value = int(b[16 + i // 64 * 32 + i % 32]) >> i // 32 % 2 * 4 & 15
        made.append(half(b, 0) * scale * value - half(b, 2) * least)
    return made


def q6_k(b):
    made = []
    for i in range(256):
        part, at = divmod(i, 128)
        low = int(b[part * 64 + at % 64]) >> at // 64 * 4 & 15
        high = int(b[128 + part * 32 + at % 32]) >> at // 32 * 2 & 3
        scale = int(b[192 + i // 16 : 193 + i // 16].view(np.int8)[0])
        made.append(half(b, 208) * scale * ((low | high << 4) - 32))
    return made


QUANTISED = {
    "Q4_0": (2, 32, 18, (0,), q4_0),
    "Q4_1": (3, 32, 20, (0, 2), q4_1),
    "Q8_0": (8, 32, 34, (0,), q8_0),
    "Q4_K": (12, 256, 144, (0, 2), q4_k),
    "Q6_K": (14, 256, 210, (208,), q6_k),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_blocks_have_the_values_that_the_format_says(tmp_path, name):
    number, count, nbytes, halves, values = QUANTISED[name]
    made = blocks(6, nbytes, halves)
    path = tmp_path / "m.gguf"
    path.write_bytes(written([("w", (3, 2 * count), number, made.tobytes())]))
    found = read_gguf(path)["w"]
    assert found.shape == (3, 2 * count)
    assert found.dtype == np.float32
    wanted = np.array([values(b) for b in made]).reshape(found.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_load_gives_plain_tensors_as_they_are(tmp_path):
    given = {
        "a": (0, RNG.normal(size=(2, 3)).astype(np.float32)),
        "b": (1, RNG.normal(size=5).astype(np.float16)),
        "c": (30, RNG.normal(size=(4, 2)).astype(ml_dtypes.bfloat16)),
        "d": (26, np.arange(6, dtype=np.int32).reshape(1, 2, 3)),
        "e": (28, np.array(2.5)),
    }
    path = tmp_path / "m"
    path.write_bytes(written([(n, a.shape, k, a.tobytes()) for n, (k, a) in given.items()], 1))
    found = checkpoint.load(path)
    assert list(found) == list(given)
    for name, (_, wanted) in given.items():
        assert found[name].numpy().dtype == wanted.dtype
        np.testing.assert_array_equal(found[name].numpy(), wanted)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    data = written([("first", (4,), 0, bytes(16)), ("last", (32,), 8, bytes(34))])
    for length in range(4, len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(StorageError, match=r"m.gguf .* not a whole GGUF file: it was cut shor"):
            read_gguf(path)
    with pytest.raises(CheckpointError, match=rf"cut short: last is to end at byte {len(data):,}"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("tensors", "version", "words"),
    [
        ([("w", (4,), 0, b"")], 1, r"its version \(bytes 4 to 8\) is 1"),
        ([("w", (256,), 16, bytes(66))], 3, r"w has elements of GGUF's type 16; .* Q8_0"),
        ([("w", (2, 16), 8, bytes(34))], 3, r"w \[2, 16\] of Q8_0 .* blocks of 32"),
        ([("w", (1,), 0, bytes(4))] * 2, 3, "two tensors 'w'"),
        ([("w", (2**40, 2**40), 0, bytes(4))], 3, "cut short: w is to end at byte"),
    ],
)
def test_wrong_files_are_refused_with_what_is_wrong(tmp_path, tensors, version, words):
    path = tmp_path / "m.gguf"
    path.write_bytes(written(tensors, version=version))
    with pytest.raises(StorageError, match=words):
        read_gguf(path)


def test_damaged_headers_are_refused_or_read_but_nothing_else(tmp_path):
    path = tmp_path / "m.gguf"
    whole = written([("w", (4,), 0, bytes(16))])
    for at in range(4, len(whole) - 16):
        data = bytearray(whole)
        data[at] ^= 0xFF
        path.write_bytes(data)
        with suppress(StorageError):
            assert read_gguf(path)
