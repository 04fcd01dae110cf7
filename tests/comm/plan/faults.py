"""Right programs, and faults that are planted in them."""

from dataclasses import dataclass

SHARED = """
name: shared
kind: all-reduce
size: 2
pieces: 2
rank 0:
  0 send 1 in[1]
  1 recv-reduce 1 out[0] in[0] final
  2 send 1 out[0] after 1
  3 recv 1 out[1]
rank 1:
  0 send 0 in[0]
  1 recv-reduce 0 out[1] in[1] final
  2 send 0 out[1] after 1
  3 recv 0 out[0]
"""

EXCHANGE = """
name: exchange
kind: all-reduce
size: 2
pieces: 1
rank 0:
  0 send 1 in[0]
  1 recv-reduce 1 out[0] in[0] final
rank 1:
  0 send 0 in[0]
  1 recv-reduce 0 out[0] in[0] final
"""

CHAIN = """
name: chain
kind: reduce
size: 3
pieces: 1
root: 2
rank 0:
  0 send 1 in[0]
rank 1, scratch 0 0 0:
  0 recv-reduce 0 scratch[0] in[0]
  1 send 2 scratch[0] after 0
rank 2, scratch 0 0 0:
  0 recv-reduce 1 out[0] in[0] final
"""

EVERYONE = """
name: everyone
kind: all-reduce
size: 3
pieces: 1
rank 0, scratch 0:
  0 send 1 in[0]
  1 send 2 in[0]
  2 recv-reduce 1 scratch[0] in[0]
  3 recv-reduce 2 out[0] scratch[0] final after 2
rank 1, scratch 0:
  0 send 0 in[0]
  1 send 2 in[0]
  2 recv-reduce 0 scratch[0] in[0]
  3 recv-reduce 2 out[0] scratch[0] final after 2
rank 2, scratch 0 0:
  0 send 0 in[0]
  1 send 1 in[0]
  2 recv 0 scratch[0]
  3 recv-reduce 1 scratch[1] scratch[0] after 2
  4 reduce out[0] scratch[1] in[0] final after 3
"""

SWAP = """
name: swap
kind: all-to-all
size: 2
pieces: 1
in-place: yes
rank 0, scratch 0 1:
  0 copy scratch[0:2] in[0:2]
  1 send 1 scratch[1] after 0
  2 copy out[0] scratch[0] after 0
  3 recv 1 out[1] after 0
rank 1, scratch 2 3:
  0 copy scratch[0:2] in[0:2]
  1 send 0 scratch[0] after 0
  2 copy out[1] scratch[1] after 0
  3 recv 0 out[0] after 0
"""

TWO = """
name: two
kind: broadcast
size: 2
pieces: 2
rank 0:
  0 send 1 in[0]
  1 send 1 in[1]
  2 copy out[0:2] in[0:2]
rank 1:
  0 recv 0 out[0]
  1 recv 0 out[1]
"""

BARRIER = """
name: barrier
kind: barrier
size: 3
pieces: 1
rank 0:
  0 recv 1
  1 recv 2
  2 send 1 after 0 1
  3 send 2 after 0 1
rank 1:
  0 send 0
  1 recv 0
rank 2:
  0 send 0
  1 recv 0
"""


@dataclass(frozen=True)
class Fault:
    """A program with `old` replaced by `new`; the refusal's rank, step and chunk, and reason."""

    name: str
    program: str
    old: str
    new: str
    at: tuple[int, int, str]
    reason: str


FAULTS = [
    Fault(
        "a message that nobody takes",
        SHARED,
        "  3 recv 0 out[0]\n",
        "",
        (0, 2, ""),
        "rank 0 sends 2 messages to rank 1, which receives 1",
    ),
    Fault(
        "another block than the receiver's",
        TWO,
        "0 recv 0 out[0]\n  1 recv 0 out[1]",
        "0 recv 0 out[1]\n  1 recv 0 out[0]",
        (1, 0, "out[1]"),
        "message of rank 0, step 0, has the blocks 0, it takes 1",
    ),
    Fault(
        "a longer message than the receiver's",
        TWO,
        "0 send 1 in[0]\n",
        "0 send 1 in[0:2]\n",
        (1, 0, "out[0]"),
        "has the blocks 0 1, it takes 0",
    ),
    Fault(
        "a sum that is sent before it is there",
        SHARED,
        "2 send 1 out[0] after 1",
        "2 send 1 out[0]",
        (0, 2, "out[0]"),
        "it reads what",
    ),
    Fault(
        "a source that is overwritten while it is sent",
        EXCHANGE,
        "pieces: 1",
        "pieces: 1\nin-place: yes",
        (1, 0, "in[0]"),
        "hazard: it reads what step 1 writes, and neither waits for the other",
    ),
    Fault(
        "two that wait for each other",
        EXCHANGE,
        "final\n",
        "final after 0\n",
        (0, 0, ""),
        "deadlock: rank 0 step 0 waits for rank 1 step 0 waits for rank 0 step 0",
    ),
    Fault(
        "a contribution that is added twice",
        EVERYONE,
        "4 reduce out[0] scratch[1] in[0]",
        "4 reduce out[0] scratch[1] scratch[0]",
        (2, 4, "out[0]"),
        "what rank 0 contributed is added twice",
    ),
    Fault(
        "a sum that is finished too early",
        CHAIN,
        "scratch[0] in[0]\n",
        "scratch[0] in[0] final\n",
        (1, 0, "scratch[0]"),
        "finished without what rank 2 contributed",
    ),
    Fault(
        "a sum that lacks a contribution",
        CHAIN,
        "1 send 2 scratch[0] after 0",
        "1 send 2 in[0]",
        (2, 0, "out[0]"),
        "a sum is finished without what rank 0 contributed",
    ),
    Fault(
        "a sum that nobody finishes",
        CHAIN,
        "out[0] in[0] final",
        "out[0] in[0]",
        (2, -1, "out[0]"),
        "no step finishes the sum",
    ),
    Fault(
        "a sum that is finished twice",
        CHAIN,
        "0 recv-reduce 1 out[0] in[0] final",
        "0 recv-reduce 1 scratch[0] in[0] final\n  1 copy out[0] scratch[0] final after 0",
        (2, 1, "out[0]"),
        "finished twice",
    ),
    Fault(
        "results of another association",
        EVERYONE,
        "2 recv 0 scratch[0]\n  3 recv-reduce 1 scratch[1] scratch[0] after 2\n"
        "  4 reduce out[0] scratch[1] in[0] final after 3",
        "2 recv-reduce 0 scratch[0] in[0]\n  3 recv-reduce 1 out[0] scratch[0] final after 2",
        (2, -1, "out[0]"),
        "added up in another order than on rank 0",
    ),
    Fault(
        "a step that writes the source",
        TWO,
        "0 recv 0 out[0]",
        "0 recv 0 in[0]",
        (1, 0, "in[0]"),
        "the place has 0 chunks on this rank",
    ),
    Fault(
        "a root that writes the source",
        CHAIN,
        "0 recv-reduce 1 out[0] in[0] final",
        "0 recv-reduce 1 in[0] in[0] final",
        (2, 0, "in[0]"),
        "a step writes to the caller's source",
    ),
    Fault(
        "a chunk that is not there",
        SHARED,
        "3 recv 1 out[1]",
        "3 recv 1 out[2]",
        (0, 3, "out[2]"),
        "the place has 2 chunks on this rank",
    ),
    Fault(
        "a peer that is not there",
        SHARED,
        "0 send 1 in[1]",
        "0 send 2 in[1]",
        (0, 0, ""),
        "the peer is another of the 2 ranks, is 2",
    ),
    Fault(
        "a message to itself",
        SHARED,
        "0 send 1 in[1]",
        "0 send 0 in[1]",
        (0, 0, ""),
        "the peer is another of the 2 ranks, is 0",
    ),
    Fault(
        "a step that waits for itself",
        SHARED,
        "3 recv 1 out[1]",
        "3 recv 1 out[1] after 3",
        (0, 3, ""),
        "it waits for step 3, which is not an earlier one",
    ),
    Fault(
        "memory that nobody wrote",
        CHAIN,
        "1 send 2 scratch[0] after 0",
        "1 send 2 scratch[1] after 0",
        (1, 1, "scratch[1]"),
        "it reads what nobody wrote",
    ),
    Fault(
        "a result that nobody writes",
        TWO,
        "2 copy out[0:2] in[0:2]",
        "2 copy out[0] in[0]",
        (0, -1, "out[1]"),
        "nothing is written here",
    ),
    Fault(
        "a broadcast that adds",
        TWO,
        "1 recv 0 out[1]",
        "1 recv-reduce 0 out[1] out[1]",
        (1, 1, ""),
        "nothing is added in kind broadcast",
    ),
    Fault(
        "a broadcast that finishes a sum",
        TWO,
        "2 copy out[0:2] in[0:2]",
        "2 copy out[0:2] in[0:2] final",
        (0, 2, ""),
        "a copy in kind broadcast finishes no sum",
    ),
    Fault(
        "scratch memory of no block",
        SWAP,
        "rank 1, scratch 2 3",
        "rank 1, scratch 2 4",
        (1, -1, ""),
        "scratch of block 4, there are 4 blocks",
    ),
    Fault(
        "operands of different lengths",
        SWAP,
        "2 copy out[0] scratch[0] after 0",
        "2 copy out[0] scratch[1] after 0",
        (0, 2, "scratch[1]"),
        "the operands are blocks 0 and 1",
    ),
    Fault(
        "operands that overlap",
        CHAIN,
        "1 send 2 scratch[0] after 0",
        "1 send 2 scratch[0] after 0\n  2 copy scratch[0:2] scratch[1:3] after 1",
        (1, 2, "scratch[1:3]"),
        "it reads and writes the same memory, shifted or in a copy",
    ),
    Fault(
        "a source that is overwritten in place, with overlap",
        SWAP,
        "1 send 1 scratch[1] after 0",
        "1 send 1 in[1]",
        (0, 1, "in[1]"),
        "hazard: it reads what step 3 overwrites in place, and neither waits",
    ),
    Fault(
        "two writers of a chunk",
        CHAIN,
        "1 send 2 scratch[0] after 0",
        "1 send 2 scratch[0] after 0\n  2 copy scratch[0] in[0] after 1\n"
        "  3 copy scratch[1] in[0]\n  4 copy scratch[0] scratch[1] after 3",
        (1, 4, "scratch[0]"),
        "hazard: it writes what step 0 writes, and neither waits",
    ),
    Fault(
        "a rank that leaves a barrier early",
        BARRIER,
        "2 send 1 after 0 1",
        "2 send 1 after 0",
        (1, -1, ""),
        "it leaves the barrier without a word from rank 2",
    ),
    Fault(
        "a root that is not there",
        CHAIN,
        "root: 2",
        "root: 3",
        (-1, -1, ""),
        "root is one of the 3 ranks, is 3",
    ),
    Fault(
        "a message that nobody sends",
        SHARED,
        "  2 send 1 out[0] after 1\n  3 recv",
        "  2 recv",
        (1, 3, ""),
        "rank 0 sends 1 messages to rank 1, which receives 2",
    ),
    Fault(
        "a source that was overwritten in place",
        SWAP,
        "1 send 0 scratch[0] after 0\n"
        "  2 copy out[1] scratch[1] after 0\n  3 recv 0 out[0] after 0",
        "1 recv 0 out[0] after 0\n  2 copy out[1] scratch[1] after 1\n  3 send 0 in[0] after 2",
        (1, 3, "in[0]"),
        "it reads the source, which step 2 overwrites in place",
    ),
    Fault(
        "a message behind one that cannot go",
        TWO,
        "  0 send 1 in[0]\n  1 send 1 in[1]\n  2 copy out[0:2] in[0:2]\n"
        "rank 1:\n  0 recv 0 out[0]\n  1 recv 0 out[1]\n",
        "  0 recv 1\n  1 send 1 in[0] after 0\n  2 send 1 in[1]\n  3 copy out[0:2] in[0:2]\n"
        "rank 1:\n  0 recv 0 out[0]\n  1 recv 0 out[1]\n  2 send 0 after 1\n",
        (0, 1, ""),
        "deadlock: rank 0 step 1 waits for rank 1 step 2 waits for rank 0 step 2 waits for rank 0",
    ),
]
"""More than the twenty that an acceptance test of this layer asks for."""
