"""Finds calls in C text that can wait for ever, by their shape alone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.core.waits import Wait

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
CALL = re.compile(r"\b([a-z_0-9]+)\s*\(")
ENDLESS = ("-1", "NULL", "INFINITY", "INT64_MAX")


@dataclass(frozen=True)
class Blocking:
    """A function that waits: as long as its argument `limit` says, or for ever if that is None."""

    name: str
    limit: int | None
    advice: str


SLICE = "wait in slices of at most a second, and look around after each"

BLOCKING = (
    Blocking("hc_futex_wait", 2, SLICE),
    Blocking("hc_shared_wait", 2, SLICE),
    Blocking("he_futex_wait", 2, SLICE),
    Blocking("syscall", 4, SLICE),  # of a futex alone: number, word, FUTEX_WAIT, value, time
    Blocking("pthread_cond_wait", None, "use pthread_cond_timedwait"),
    Blocking("pthread_join", None, "use pthread_clockjoin_np, and say what happens after that"),
    Blocking("sem_wait", None, "use sem_clockwait"),
    Blocking("poll", 2, "give it a time"),
    Blocking("ppoll", 2, "give it a time"),
    Blocking("epoll_wait", 3, "give it a time"),
    Blocking("select", 4, "give it a time"),
    *(Blocking(name, None, "poll with a time first") for name in ("read", "recv", "accept")),
    *(Blocking(name, None, "poll a pidfd with a time") for name in ("wait", "waitpid")),
    *(Blocking(name, None, "use a call that takes a time") for name in ("pause", "sigwait")),
)
BY_NAME = {b.name: b for b in BLOCKING}


def native_waits_in(text: str) -> Iterator[Wait]:
    """Every wait without a limit in a C file."""
    bare = COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)
    for match in CALL.finditer(bare):
        blocking = BY_NAME.get(match[1])
        arguments = _arguments(bare[match.end() :])
        if blocking and _is_call(bare, match) and _is_endless(blocking, arguments):
            code = f"{blocking.name}({', '.join(arguments)})"
            yield Wait(1 + bare.count("\n", 0, match.start()), code, blocking.advice)


def _is_call(text: str, match: re.Match[str]) -> bool:
    """Not a declaration, which has a type in front."""
    before = text[: match.start()].rstrip(" *")
    return before.endswith("return") or not re.search(r"\w$", before)


def _is_endless(blocking: Blocking, arguments: list[str]) -> bool:
    if blocking.name == "syscall" and not any("FUTEX_WAIT" in a for a in arguments):
        return False
    if blocking.limit is None:
        return not any("MSG_DONTWAIT" in a for a in arguments)
    return any(word in arguments[blocking.limit].split() for word in ENDLESS)


def _arguments(text: str) -> list[str]:
    """What stands between the commas up to the closing bracket, white space made single."""
    parts, depth = [""], 0
    for character in text:
        if character == ")" and depth == 0:
            break
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [" ".join(part.split()) for part in parts]
