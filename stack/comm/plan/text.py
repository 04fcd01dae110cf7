"""Programs as text, and back: to read, to compare, and to write schedules by hand.

    name: ring
    kind: all-reduce
    size: 2
    pieces: 2
    rank 0:
      0 send 1 in[1]
      1 recv-reduce 1 out[0] in[0] final
      2 send 1 out[0] after 1
      3 recv 1 out[1]
    rank 1:
      ...

Lines before the first rank are `key: value`; `root: R`, `target: R` and `in-place: yes` may be left
out. A rank with scratch chunks says `rank 0, scratch 2 3:`, the blocks whose lengths they have. A
step is its number, its operation, the peer where it has one, its operands (dst, src, other, as
far as it has them), `final`, and `after` with earlier steps. `out[2]` is one chunk, `out[2:5]`
are the chunks 2, 3 and 4. Empty lines and what follows a `#` say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from hal.core.facts import dataclass
from hal.core.values import CollectiveKind
from stack.comm.plan.error import PlanError
from stack.comm.plan.program import ChunkPlace, Op, PlanKind, PointKind, Program, Span, Step

OPERANDS: Mapping[Op, tuple[str, ...]] = {
    Op.SEND: ("src",),
    Op.RECV: ("dst",),
    Op.RECV_REDUCE: ("dst", "src"),
    Op.COPY: ("dst", "src"),
    Op.REDUCE: ("dst", "src", "other"),
}
"""The operands of each operation, in the order of the text."""

MESSAGES = (Op.SEND, Op.RECV, Op.RECV_REDUCE)

KINDS: Mapping[str, PlanKind] = {k.value: k for k in (*CollectiveKind, *PointKind)}
_OPS = {op.value: op for op in Op}
_DIGITS = 18
"""The most digits of a number: it fits into 64 bits."""
_SPAN = re.compile(r"(in|out|scratch)\[(\d+)(?::(\d+))?\]", re.ASCII)
_RANK = re.compile(r"rank (\d+)(?:, scratch((?: \d+)+))?:", re.ASCII)
_KEYS = ("name", "kind", "size", "pieces", "root", "target", "in-place")


def print_program(program: Program) -> str:
    """The program as text; equal programs give equal texts."""
    return "\n".join(_lines(program)) + "\n"


def print_span(span: Span) -> str:
    """The text of a span that has chunks."""
    rest = f":{span.start + span.count}" if span.count > 1 else ""
    return f"{span.place.value}[{span.start}{rest}]"


def _lines(program: Program) -> Iterator[str]:
    yield f"name: {program.name}"
    yield f"kind: {program.kind.value}"
    yield f"size: {program.size}"
    yield f"pieces: {program.pieces}"
    if program.root:
        yield f"root: {program.root}"
    if program.target:
        yield f"target: {program.target}"
    if program.in_place:
        yield "in-place: yes"
    for rank, steps in enumerate(program.steps):
        scratch = program.scratch[rank]
        listed = f", scratch {' '.join(map(str, scratch))}" if scratch else ""
        yield f"rank {rank}{listed}:"
        for index, step in enumerate(steps):
            yield f"  {index} {print_step(step)}"


def print_step(step: Step) -> str:
    """A step without its number."""
    words = [step.op.value]
    words += [str(step.peer)] if step.op in MESSAGES else []
    spans: list[Span] = [getattr(step, name) for name in OPERANDS[step.op]]
    words += [print_span(span) for span in spans if span.count]
    words += ["final"] if step.final else []
    words += ["after", *map(str, step.after)] if step.after else []
    return " ".join(words)


def load_program(path: Path) -> Program:
    """The program in a file. Raises PlanError, which names the file and the line."""
    try:
        return parse_program(path.read_text(encoding="utf-8", errors="replace"))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


@dataclass(slots=True)
class _Reading:
    """What was read so far."""

    header: dict[str, str] = field(default_factory=dict)
    scratch: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[list[Step]] = field(default_factory=list)


def parse_program(text: str) -> Program:
    """The program of a text. It is not checked; `check.check` does that.

    Raises PlanError with the 1-based line for a text that is not a program.
    """
    reading = _Reading()
    for number, line in enumerate(text.splitlines(), 1):
        said = line.split("#")[0].strip()
        try:
            if said:
                _read(said, reading)
        except PlanError as error:
            raise PlanError(f"line {number}: {error}") from None
    header = reading.header
    if missing := [key for key in _KEYS[:4] if key not in header]:
        raise PlanError(f"the text does not say '{missing[0]}: ...'")
    if header["kind"] not in KINDS:
        raise PlanError(f"kind is one of {', '.join(KINDS)}, not {header['kind']!r}")
    size = _number("size", header["size"])
    if len(reading.steps) != size:
        raise PlanError(f"a program of size {size} has as many ranks, not {len(reading.steps)}")
    if header.get("in-place", "no") not in ("yes", "no"):
        raise PlanError(f"in-place is yes or no, not {header['in-place']!r}")
    return Program(
        header["name"],
        KINDS[header["kind"]],
        size,
        _number("pieces", header["pieces"]),
        tuple(reading.scratch),
        tuple(map(tuple, reading.steps)),
        _number("root", header.get("root", "0")),
        _number("target", header.get("target", "0")),
        header.get("in-place") == "yes",
    )


def _read(line: str, reading: _Reading) -> None:
    if match := _RANK.fullmatch(line):
        if _number("a rank", match[1]) != len(reading.steps):
            raise PlanError(f"rank {len(reading.steps)} comes here, not rank {match[1]}")
        scratch = (match[2] or "").split()
        reading.scratch.append(tuple(_number("a block of scratch", word) for word in scratch))
        reading.steps.append([])
    elif reading.steps:
        reading.steps[-1].append(_step(line, len(reading.steps[-1])))
    else:
        key, _, value = (part.strip() for part in line.partition(":"))
        if key not in _KEYS or key in reading.header:
            raise PlanError(f"expected one each of {', '.join(_KEYS)} or 'rank 0:', got {line!r}")
        reading.header[key] = value


def _number(what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise PlanError(f"{what} is a number, not {text!r}")
    if len(text) > _DIGITS:
        said = f"{text[:_DIGITS]}... of {len(text)} digits"
        raise PlanError(f"{what} is a number of at most {_DIGITS} digits, not {said}")
    return int(text)


def _step(line: str, index: int) -> Step:
    number, *words = line.split()
    if number != str(index):
        raise PlanError(f"step {index} comes here, got {line!r}")
    if not words or words[0] not in _OPS:
        raise PlanError(f"a step is one of {', '.join(_OPS)}, got {line!r}")
    op = _OPS[words.pop(0)]
    peer = -1
    if op in MESSAGES:
        peer = _number("the peer", words.pop(0) if words else "")
    after: tuple[int, ...] = ()
    if "after" in words:
        at = words.index("after")
        after = tuple(_number("after", word) for word in words[at + 1 :])
        words = words[:at]
    final = words[-1:] == ["final"]
    spans = [_span(word) for word in (words[:-1] if final else words)]
    names = OPERANDS[op]
    if len(spans) not in (len(names), 0 if op in MESSAGES else len(names)):
        raise PlanError(f"{op.value} has the operands {', '.join(names)}, got {line!r}")
    return Step(op, peer, after=after, final=final, **dict(zip(names, spans, strict=False)))


def _span(word: str) -> Span:
    match = _SPAN.fullmatch(word)
    if match is None:
        raise PlanError(f"expected chunks such as in[0] or out[2:5], got {word!r}")
    start = _number("a chunk", match[2])
    count = _number("a chunk", match[3]) - start if match[3] else 1
    if count < 1:
        raise PlanError(f"{word} has no chunk")
    return Span(ChunkPlace(match[1]), start, count)
