"""What authenticates the bytes between hosts, against RFC 8439's own vectors and its text in
Python."""

import ctypes
import random
from pathlib import Path

import pytest

from stack.comm.engine import _native
from tests.comm.engine.rfc8439 import authentication_tag, chacha20_block, poly1305

C = ctypes.CDLL(_native.__file__)
IETF = b"""Any submission to the IETF intended by the Contributor for publication as all or part of\
 an IETF Internet-Draft or RFC and any statement made within the context of an IETF activity is\
 considered an "IETF Contribution". Such statements include oral statements in IETF sessions, as\
 well as written and electronic communications made at any time or place, which are addressed to"""
R, S = "36e5f6b5c5e06070f0efca96227a863e", "00" * 16
WIDTHS = [1] + [
    width
    for width, flag in ((4, "avx2"), (8, "avx512ifma"))
    if flag in Path("/proc/cpuinfo").read_text().split()
]


class Piece(ctypes.Structure):
    _fields_ = (("at", ctypes.c_char_p), ("nbytes", ctypes.c_int64))


@pytest.fixture(params=WIDTHS)
def width(request):
    """How many blocks go at a time."""
    chosen = ctypes.c_int.in_dll(C, "he_mac_width")
    before, chosen.value = chosen.value, request.param
    yield request.param
    chosen.value = before


def native_poly1305(key, *parts):
    tag = ctypes.create_string_buffer(16)
    C.he_poly1305(key, (Piece * len(parts))(*[(p, len(p)) for p in parts]), len(parts), tag)
    return tag.raw


def native_tag(key, nonce, *parts):
    tag = ctypes.create_string_buffer(16)
    C.he_mac(key, nonce, (Piece * len(parts))(*[(p, len(p)) for p in parts]), len(parts), tag)
    return tag.raw


def native_chacha20(key, counter, nonce):
    out = ctypes.create_string_buffer(32)
    C.he_chacha20(key, ctypes.c_uint32(counter), nonce, out)
    return out.raw


# (key, counter, nonce, the first 32 bytes of the stream): sections A.1 and A.4
STREAMS = [
    ("00" * 32, 0, "00" * 12, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
    ("00" * 32, 1, "00" * 12, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
    (
        "00" * 31 + "01", 1, "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a",
    ),
    (
        "00ff" + "00" * 30, 2, "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca",
    ),
    (
        "00" * 32, 0, "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7",
    ),
    (
        "1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0", 0,
        "000000000000000000000002",
        "965e3bc6f9ec7ed9560808f4d229f94b137ff275ca9b3fcbdd59deaad23310ae",
    ),
    (  # 2.6.2
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", 0,
        "000000000001020304050607",
        "8ad5a08b905f81cc815040274ab29471a833b637e3fd0da508dbb8e2fdd1a646",
    ),
]  # fmt: skip
# (r and s, message, tag): sections 2.5.2 and A.3
TAGS = [
    (
        "85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b",
        b"Cryptographic Forum Research Group", "a8061dc1305136c6c22b8baf0c0127a9",
    ),
    (S + S, bytes(64), S),
    (S + R, IETF, R),
    (R + S, IETF, "f3477e7cd95417af89a6b8794c310cf0"),
    ("02" + "00" * 31, b"\xff" * 16, "03" + "00" * 15),
    ("02" + "00" * 15 + "ff" * 16, b"\2" + bytes(15), "03" + "00" * 15),
    (
        "01" + "00" * 31, b"\xff" * 16 + b"\xf0" + b"\xff" * 15 + b"\x11" + bytes(15),
        "05" + "00" * 15,
    ),
    (
        "01" + "00" * 31, b"\xff" * 16 + b"\xfb" + b"\xfe" * 15 + b"\1" * 16, S,
    ),
    ("02" + "00" * 31, b"\xfd" + b"\xff" * 15, "fa" + "ff" * 15),
    (
        "01" + "00" * 7 + "04" + "00" * 23,
        bytes.fromhex(
            "e33594d7505e43b900000000000000003394d7505e4379cd01000000000000000000000000000000000000"
            "000000000001000000000000000000000000000000"
        ),
        "14" + "00" * 7 + "55" + "00" * 7,
    ),
    (
        "01" + "00" * 7 + "04" + "00" * 23,
        bytes.fromhex(
            "e33594d7505e43b900000000000000003394d7505e4379cd01000000000000000000000000000000000000"
            "0000000000"
        ),
        "13" + "00" * 15,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key", "counter", "nonce", "stream"), STREAMS)
def test_the_key_stream_is_that_of_the_specification(key, counter, nonce, stream):
    key, nonce = bytes.fromhex(key), bytes.fromhex(nonce)
    assert native_chacha20(key, counter, nonce).hex() == stream
    assert chacha20_block(key, counter, nonce)[:32].hex() == stream


@pytest.mark.parametrize(("key", "message", "tag"), TAGS)
def test_the_authenticator_is_that_of_the_specification(key, message, tag, width):
    key = bytes.fromhex(key)
    assert native_poly1305(key, message).hex() == tag
    assert poly1305(key, message).hex() == tag


def test_long_messages_in_pieces_have_the_tags_of_the_specification(width):
    choose = random.Random(width)
    for k in range(150):
        length = choose.choice([choose.randrange(600), choose.randrange(6000)])
        data = b"\xff" * length if k % 3 == 0 else choose.randbytes(length)
        key = b"\xff" * 32 if k % 5 == 0 else choose.randbytes(32)
        cut = sorted(choose.choices(range(length + 1), k=2))
        parts = data[: cut[0]], data[cut[0] : cut[1]], data[cut[1] :]
        assert native_poly1305(key, *parts) == poly1305(key, data), (length, cut)
        nonce = choose.randbytes(12)
        assert native_tag(key, nonce, *parts) == authentication_tag(key, nonce, data)
