"""Texts of several programs as one text.

A driver may take longer for what it reads before a text than for the text: PoCL parses its header
for each build, 0.14 s. So programs that are loaded together are built together. Each text keeps
what it says: its names of file scope get its number behind them, and its macros end with it. A text
of which that cannot be said for certain is built alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

from hal.core.values import KernelSource

_MEAN, _MOST = 8, 16
"""How many texts a group has in the mean, and at most."""
_LONGEST = 80
"""The longest name of an entry of a group: some drivers abort when names are too long for files."""

_TOKEN = re.compile(r"\w+|\S")
_ENUM = re.compile(r"\benum\b")
_NAME = re.compile(r"[A-Za-z_]\w*")
_STRANGE = re.compile(r"[\"'\\]|//|/\*|##|\?\?")
"""What would need a real lexer: strings, comments, names that macros put together."""
_DIRECTIVE = re.compile(r"#\s*(?:(define)\s+(\w+)|(if|ifdef|ifndef|elif|else|endif|pragma)\b)")
_WORDS = frozenset({"__attribute__", "__kernel", "kernel", "void", "static", "inline", "const"})
_BEHIND = frozenset("(;=[,{")
"""What may follow a name where it is declared, beside an attribute."""
_RESERVED = ("_", "cl", "m_", "flt_", "dbl_", "half_")
"""Begin the names of macros that a driver may define itself."""
_RUN = "hal_run"
"""The argument that says whether an entry runs."""
_BRACE = re.compile(r"[{}]")
_OPEN, _CLOSE = "({[", ")}]"


@lru_cache(maxsize=4)
def groups(sources: tuple[KernelSource, ...]) -> tuple[tuple[KernelSource, ...], ...]:
    """Those that are built together, each source in at most one. Which they are follows from the
    texts, so that drivers and caches find them again: where one ends is said by its last text, and
    another text beside them makes one group another. Pure."""
    found: list[list[KernelSource]] = []
    ended, before = True, ""
    for first, mark, source in sorted(
        ((_first(s.text), _mark(s), s) for s in dict.fromkeys(sources) if _can_join(s)),
        key=lambda x: x[:2],
    ):
        if ended or first != before or len(found[-1]) == _MOST:
            found.append([])
        found[-1].append(source)
        ended, before = mark[0] % _MEAN == 0, first
    return tuple(tuple(group) for group in found)


def part(text: str, number: int, calls: bool) -> str:
    """A text that can be joined, as it stands beside others. With `calls` its entry is a function
    that a kernel calls. Pure."""
    names, macros = _names(text) or (set(), set())
    undone = sorted(names | macros | ({"__kernel"} if calls else set()))
    return "".join(
        (
            *(f"#define {name} {numbered(name, number)}\n" for name in sorted(names)),
            "#define __kernel\n" if calls else "",
            f"{text}\n",
            *(f"#undef {name}\n" for name in undone),
        )
    )


def guarded(text: str, entry: str) -> str | None:
    """A text whose entry does nothing where a last argument, of one byte, is 0; None where the
    entry is not certain to be found. For work-groups of one: others need all their members. Pure.
    """
    found = re.findall(rf"\bvoid\s+{re.escape(entry)}\s*\(", text)
    often = len(re.findall(rf"\b{re.escape(entry)}\b", text))
    if len(found) != 1 or often != 1 or _STRANGE.search(_unfolded(text)):
        return None
    if not text.isascii() or _RUN in text:
        return None
    begin = text.index(found[0]) + len(found[0])
    end, body = text.find(")", begin), text.find("{", begin)
    params = text[begin:end].strip()
    if not 0 < end < body or "(" in params or text[end + 1 : body].strip():
        return None
    more = f"{params}, uchar {_RUN}" if params not in ("", "void") else f"uchar {_RUN}"
    return f"{text[:begin]}{more}) {{ if (!{_RUN}) return;{text[body + 1 :]}"


def numbered(name: str, number: int) -> str:
    """What a name of file scope is in the joined text. Pure."""
    return f"{name}_{number}"


def _can_join(source: KernelSource) -> bool:
    return len(source.entry) <= _LONGEST and _names(source.text) is not None


def _mark(source: KernelSource) -> bytes:
    return hashlib.sha256(repr(source).encode(errors="backslashreplace")).digest()


def _first(text: str) -> str:
    """The first line. A pragma there holds for all that follows, so it must be the same for all
    texts of a file."""
    return text.partition("\n")[0].strip()


def _unfolded(text: str) -> str:
    """A text whose macros are of one line each. Pure."""
    return text.replace("\\\n", " ")


@lru_cache(maxsize=64)
def _names(text: str) -> tuple[frozenset[str], frozenset[str]] | None:
    """The names that a text declares at file scope, and its macros; None where it must be a file of
    its own. Pure."""
    whole = _unfolded(text)
    if _STRANGE.search(whole) or not whole.isascii():
        return None
    macros, code, depth = set(), [], 0
    for place, line in enumerate(whole.splitlines()):
        if not line.lstrip().startswith("#"):
            code.append(line)
            depth += line.count("{") - line.count("}")
            continue
        found = _DIRECTIVE.match(line.lstrip())
        if found is None or (found[3] == "pragma" and place and not depth):
            return None  # a pragma of the file would hold for the texts behind it, too
        if found[1] and found[2].lower().startswith(_RESERVED):
            return None  # others would miss what the driver means by it
        if found[1]:
            macros.add(found[2])
    names = _declared("\n".join(code))
    if names is None or names & macros:
        return None
    return frozenset(names), frozenset(macros)


def _declared(code: str) -> set[str] | None:
    """The names that are declared at file scope; None where brackets do not match."""
    if "enum" in code and _ENUM.search(code):
        return None  # it declares names within its braces
    names: set[str] = set()
    outside = _without_bodies(code)
    tokens: Sequence[str] = _TOKEN.findall(outside or "")
    depth = 0
    for token, following in zip(tokens, [*tokens[1:], ";"], strict=False):
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth < 0:
                return None
        elif (
            not depth
            and _NAME.fullmatch(token)
            and token not in _WORDS
            and (following in _BEHIND or following == "__attribute__")
        ):
            names.add(token)
    return names if outside is not None and depth == 0 else None


def _without_bodies(code: str) -> str | None:
    """A text with nothing in its outermost braces, which is most of it; None where brackets do not
    match. Pure."""
    outside, depth, begin = list[str](), 0, 0
    for found in _BRACE.finditer(code):
        opens = found[0] == "{"
        depth += 1 if opens else -1
        if depth < 0:
            return None
        if depth > opens:
            continue
        part, begin = code[begin : found.start()], found.start()
        if opens:
            outside.append(part)
        elif sum(map(part.count, "([")) == sum(map(part.count, ")]")):
            outside.append("{")
        else:
            return None
    return "".join([*outside, code[begin:]]) if depth == 0 else None
