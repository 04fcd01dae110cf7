"""ChaCha20 and Poly1305 as RFC 8439 writes them down, in Python's own numbers: what the engine's C
is compared with, and by which a test speaks as a rank of another host."""

import struct

_MASK = 0xFFFFFFFF
_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")
_PRIME = (1 << 130) - 5


def chacha20_block(key, counter, nonce):
    """64 bytes of key stream (section 2.3)."""
    start = [*_CONSTANTS, *struct.unpack("<8I", key), counter, *struct.unpack("<3I", nonce)]
    state = list(start)
    for _ in range(10):
        for i in range(4):
            _quarter_round(state, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            _quarter_round(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *[(a + b) & _MASK for a, b in zip(state, start, strict=True)])


def _quarter_round(s, a, b, c, d):
    for left, right, into, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[left] = (s[left] + s[right]) & _MASK
        mixed = s[into] ^ s[left]
        s[into] = (mixed << by | mixed >> (32 - by)) & _MASK


def poly1305(key, message):
    """The authenticator (section 2.5)."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(message), 16):
        block = message[at : at + 16] + b"\1"
        total = (total + int.from_bytes(block, "little")) * r % _PRIME
    return ((total + int.from_bytes(key[16:], "little")) % (1 << 128)).to_bytes(16, "little")


def authentication_tag(key, nonce, data):
    """The tag of AEAD_CHACHA20_POLY1305 (section 2.8) where all is additional data, and nothing is
    encrypted."""
    once = chacha20_block(key, 0, nonce)[:32]
    padded = data + bytes(-len(data) % 16)
    return poly1305(once, padded + struct.pack("<QQ", len(data), 0))
