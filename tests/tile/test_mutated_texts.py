"""Damaged texts: what is no kernel is refused by the format's own error, whatever it says."""

import random
from pathlib import Path

import pytest

from hal.tile.errors import TileError, TileTextError
from hal.tile.text import parse_kernel, print_kernel
from hal.tile.verify import verify
from tests.conftest import GOLDEN

TEXTS = [path.read_text() for path in sorted(Path(GOLDEN, "tile").glob("*"))]
WORDS = [
    "0", "-1", "9" * 5000, "-" + "9" * 5000, str(2**31), str(2**63), str(2**64), "1e999", "nan:f16",
    "inf", "1:bool", "%0", "%" + "1" * 30, "$n", "f32", "f32[2147483648]", "f32[65536,65536]",
    "f32[0]", "f32[" + "2," * 200 + "2]", "(", ")", "{", "}", "[", "]", ",", "=", "->", "_", "load",
    "store", "for", "if", "else", "next", "alloc", "copy", "wait", "true", "\0", "\u00e9", "\ud800",
]  # fmt: skip
NAMED = "hal-tile/1\nkernel k(x: buffer f32 reads writes, n: scalar i64) {{\n  {}\n}}\n"


def damaged(rng, text):
    for _ in range(rng.choice([1, 1, 2, 5])):
        words = text.split(" ")
        lines = text.split("\n")
        place, at, line = rng.randrange(len(words)), rng.randrange(len(text) + 1), rng.choice(lines)
        way = rng.randrange(6)
        if way == 0:
            words[place] = rng.choice(WORDS)
        elif way == 1:
            words[place] = rng.choice(words)
        elif way == 2:
            words.insert(place, rng.choice(WORDS))
        text = " ".join(words)
        if way == 3:
            text = text[:at] + text[at + rng.choice([1, 1, 40]) :]
        elif way == 4:
            text = text.replace(line, line + "\n" + rng.choice(lines), 1)
        elif way == 5:
            text = text[:at]
    return text


@pytest.mark.slow
def test_a_damaged_text_is_a_kernel_or_the_formats_error():
    rng, kernels = random.Random(1), 0
    for _ in range(2000):
        text = damaged(rng, rng.choice(TEXTS))
        try:
            kernel = parse_kernel(text)
            verify(kernel)
        except TileError:
            continue
        kernels += 1
        assert parse_kernel(print_kernel(kernel)) == kernel
    assert kernels  # some damage does none, such as to a comment or a number


@pytest.mark.parametrize(
    "statement",
    [
        f"%1 = add {'9' * 5000}, 1 : i64",
        f"%1 = program_id axis={'9' * 5000} : i64",
        f"wait channel({'9' * 5000})",
        f"%1 = broadcast {'9' * 5000}:u8 : u8[4]",
        f"alloc s : f32[{2**64}]",
    ],
    ids=["operand", "attribute", "channel", "constant", "size"],
)
def test_a_number_beyond_64_bits_is_refused_at_its_place(statement):
    with pytest.raises(TileTextError, match=r"line 3, column \d+: an integer of \d+ characters"):
        parse_kernel(NAMED.format(statement))


@pytest.mark.parametrize(
    ("statement", "limit"),
    [
        ("%1 = broadcast 0.0:f32 : f32[2147483648]\n  store %1 to x[0] strides(1)", "a tile has"),
        ("%1 = broadcast 0.0:f32 : f32[65536,32768]\n  store %1 to x[0] strides(1,1)", "a tile"),
        ("%1 = load x[0] strides(1) : f32[4294967296]", "a tile has at most 2147483647"),
        ("alloc s : f32[2147483648]", "it may be at most 2147483647"),
    ],
)
def test_a_tile_of_too_many_elements_is_refused_with_the_limit(statement, limit):
    with pytest.raises(TileError, match=limit):
        verify(parse_kernel(NAMED.format(statement)))


def test_blocks_are_nested_so_deep_and_no_deeper():
    def nested(depth):
        return NAMED.format("if true {\n" * depth + "barrier\n" + "}\n" * depth)

    verify(parse_kernel(nested(63)))
    with pytest.raises(TileTextError, match="expected at most 64 blocks inside each other"):
        parse_kernel(nested(5000))


def test_a_long_chain_of_values_is_read():
    lines = ["%0 = add $n, 1 : i64"] + [f"%{i} = add %{i - 1}, 1 : i64" for i in range(1, 3000)]
    verify(parse_kernel(NAMED.format("\n".join([*lines, "barrier"]))))
