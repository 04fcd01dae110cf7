"""Finds calls in Python text that can wait for ever, by their shape alone."""

import ast
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Wait:
    """A call that can wait for ever."""

    line: int
    code: str
    advice: str


@dataclass(frozen=True)
class Rule:
    """`found` gives whether a call of one of these names can wait for ever."""

    names: tuple[str, ...]
    found: Callable[[ast.Call, "Names"], bool]
    advice: str


@dataclass(frozen=True)
class Names:
    """What a file says about its own names."""

    imported: dict[str, str]  # a name to what it was imported as, "run" to "subprocess.run"
    made: dict[str, str]  # a variable to the call that made it, "_grad" to "contextvars.ContextVar"
    limited: frozenset[str]  # sockets that do not block, or not for ever
    polled: frozenset[ast.AST]  # what stands in functions that ask first, for a time

    def path(self, node: ast.expr) -> str:
        """The full dotted name of an expression, as far as it has one."""
        head, dot, rest = ast.unparse(node).partition(".")
        return self.imported.get(head, head) + dot + rest


def waits_in(text: str) -> Iterator[Wait]:
    """Every wait without a limit in a Python file and in the programs that its strings hold."""
    if not MENTIONED.search(text):
        return
    nodes = _nodes_of(ast.parse(text))
    yield from _waits_of(nodes, 0)
    for node in nodes:
        if isinstance(node, STRINGS) and (program := _program_in(node)) is not None:
            yield from _waits_of(_nodes_of(program), node.lineno - 1)


def _nodes_of(tree: ast.AST) -> list[ast.AST]:
    """What `ast.walk` gives, but for the contexts of names: the tree has a million nodes."""
    nodes = [tree]
    for node in nodes:  # which grow meanwhile
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes


def _waits_of(nodes: list[ast.AST], above: int) -> Iterator[Wait]:
    names = _names_of(nodes)
    for node in nodes:
        if isinstance(node, WAITING) and (advice := _advice_about(node, names)):
            yield Wait(above + node.lineno, ast.unparse(node), advice)


def _advice_about(node: ast.Call | ast.With | ast.For | ast.While, names: Names) -> str:
    if isinstance(node, ast.Call):
        return _advice_about_call(node, names)
    if isinstance(node, ast.With):
        opened = [item.context_expr for item in node.items]
        popen = any(isinstance(o, ast.Call) and names.path(o.func) == POPEN for o in opened)
        if popen and not _mentions(node, ".kill"):
            return "leaving the block waits for the process: kill it there when it takes too long"
    if isinstance(node, ast.While) and _sleeps(node):
        return "look at time.monotonic in the loop, or use for and range"
    if isinstance(node, ast.For) and _is_pipe(node.iter):
        return "reading a pipe: use select.select with a time, or communicate(timeout=SECONDS)"
    return ""


def _sleeps(loop: ast.While) -> bool:
    """It sleeps until something happens, and does not look at the clock."""
    return _mentions(loop, "sleep(") and not _mentions(loop, "monotonic(")


def _advice_about_call(call: ast.Call, names: Names) -> str:
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return ""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else names.path(call.func)
    last = name.rpartition(".")[2]
    return next((r.advice for r in RULES if last in r.names and r.found(call, names)), "")


def _program_in(node: ast.expr) -> ast.Module | None:
    """A string of several lines that is a Python program; the holes of an f-string stand for 0."""
    match node:
        case ast.Constant(value=str(text)):
            pass
        case ast.JoinedStr(values=parts):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "0" for p in parts)
        case _:
            return None
    if "\n" not in text or "(" not in text:
        return None
    try:
        return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        return None


def _names_of(nodes: list[ast.AST]) -> Names:
    names = Names({}, {}, frozenset(), frozenset())
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            of = node.module
            names.imported.update({a.asname or a.name: f"{of}.{a.name}" for a in node.names})
        if isinstance(node, ast.Import):
            names.imported.update({a.asname: a.name for a in node.names if a.asname})
    for variable, call in _assigned(nodes):
        names.made[variable] = names.path(call.func)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    polled = _polled(nodes, calls)
    return Names(names.imported, names.made, frozenset(_limited(calls)), polled)


def _assigned(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes:
        match node:
            case ast.Assign(targets=[target], value=ast.Call() as call):
                yield ast.unparse(target), call
            case ast.AnnAssign(target=target, value=ast.Call() as call):
                yield ast.unparse(target), call


def _limited(calls: list[ast.Call]) -> Iterator[str]:
    """Names of sockets for which a call sets a time, or that they do not block."""
    for call in calls:
        match call:
            case ast.Call(func=ast.Attribute(value=socket, attr="settimeout"), args=[limit]):
                if not _is_endless(limit):
                    yield _last(socket)
            case ast.Call(
                func=ast.Attribute(value=socket, attr="setblocking"),
                args=[ast.Constant(value=False)],
            ):
                yield _last(socket)


def _last(node: ast.expr) -> str:
    """A socket keeps its name when it becomes an attribute."""
    return ast.unparse(node).rpartition(".")[2]


def _mentions(node: ast.AST, text: str) -> bool:
    return text in ast.unparse(node)


def _polled(nodes: list[ast.AST], calls: list[ast.Call]) -> frozenset[ast.AST]:
    """All nodes of the functions that ask first."""
    lines = {call.lineno for call in calls if _asks_first(call)}
    functions = [node for node in nodes if lines and isinstance(node, ast.FunctionDef)]
    asking = [f for f in functions if lines & set(range(f.lineno, (f.end_lineno or 0) + 1))]
    return frozenset(node for function in asking for node in ast.walk(function))


def _asks_first(call: ast.Call) -> bool:
    """A timer that kills the process at the other end limits a read as well."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name("select"), attr="select")):
            return True
        case ast.Call(func=ast.Attribute(attr="poll"), args=[limit]):
            return not _is_endless(limit)
        case _:
            return any(isinstance(a, ast.Attribute) and a.attr == "kill" for a in call.args)


def _is_endless(node: ast.expr | None) -> bool:
    """No limit at all, None, or infinity."""
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return True
    return ast.unparse(node) in ("math.inf", "inf", "float('inf')", "-1")


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg in (name, None):  # None: **options, which may hold it
            return keyword.value
    if any(isinstance(a, ast.Starred) for a in call.args[: place + 1]):
        return call.args[0]
    return call.args[place] if place < len(call.args) else None


def _lacks(place: int, name: str = "timeout") -> Callable[[ast.Call, Names], bool]:
    return lambda call, names: _is_endless(_argument(call, place, name))


def _is_method(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute)


def _alone(call: ast.Call, names: Names) -> bool:
    """A method that is given no time; with other arguments it is a method of something else."""
    arguments = [*call.args, *(k.value for k in call.keywords if k.arg != "block")]
    return _is_method(call) and all(map(_is_endless, arguments))


def _of_a_queue(call: ast.Call, names: Names) -> bool:
    of = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    return _alone(call, names) and "ContextVar" not in names.made.get(of, "")


def _acquires(call: ast.Call, names: Names) -> bool:
    blocking = _argument(call, 0, "blocking")
    told = isinstance(blocking, ast.Constant) and blocking.value is False
    return _is_method(call) and not told and _is_endless(_argument(call, 1, "timeout"))


def _of(module: str, place: int, name: str = "timeout") -> Callable[[ast.Call, Names], bool]:
    lacks = _lacks(place, name)
    return lambda call, names: names.path(call.func).startswith(module + ".") and lacks(call, names)


def _polls(call: ast.Call, names: Names) -> bool:
    """`poll` of a process does not wait; that of the select module does."""
    of = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    made = names.made.get(of, "")
    return made in ("select.poll", "select.epoll") and _is_endless(_argument(call, 0, "timeout"))


def _waits_for_child(call: ast.Call, names: Names) -> bool:
    return names.path(call.func).startswith("os.") and "WNOHANG" not in ast.unparse(call)


def _socket_blocks(call: ast.Call, names: Names) -> bool:
    """A socket's call; the socket must have got a time under the same name in this file."""
    if not isinstance(call.func, ast.Attribute) or not _makes_sockets(names):
        return False
    module = names.path(call.func.value) == "socket"
    of = call.args[0] if module and call.args else call.func.value
    return _last(of) not in names.limited


def _makes_sockets(names: Names) -> bool:
    """Whether the file makes sockets itself; others have methods of the same names."""
    return any(made.startswith("socket.") for made in names.made.values())


def _receives(call: ast.Call, names: Names) -> bool:
    """`recv()` of a multiprocessing connection."""
    asked = call in names.polled
    return _is_method(call) and not call.args and not call.keywords and not asked


def _is_pipe(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return text in ("sys.stdin", "sys.stdin.buffer") or text.endswith((".stdout", ".stderr"))


def _reads(call: ast.Call, names: Names) -> bool:
    if not isinstance(call.func, ast.Attribute) or call in names.polled:
        return False
    return call.func.attr == "read1" or _is_pipe(call.func.value)


def _reads_descriptor(call: ast.Call, names: Names) -> bool:
    return names.path(call.func) in ("os.read", "os.readv") and call not in names.polled


def _asks(call: ast.Call, names: Names) -> bool:
    return names.path(call.func) in ("input", "signal.pause", "signal.sigwait", "os.system")


def _locks_file(call: ast.Call, names: Names) -> bool:
    held = ast.unparse(call)
    return names.path(call.func).startswith("fcntl.") and not {"LOCK_NB", "LOCK_UN"} & set(
        held.replace("fcntl.", " ").replace(")", " ").replace("|", " ").split()
    )


def _outlives(call: ast.Call, names: Names) -> bool:
    """The end of the interpreter joins every thread that is not a daemon."""
    daemon = _argument(call, 99, "daemon")
    of = names.path(call.func)
    return of == "threading.Thread" and not (
        isinstance(daemon, ast.Constant) and daemon.value is True
    )


STRINGS = (ast.Constant, ast.JoinedStr)
WAITING = (ast.Call, ast.With, ast.For, ast.While)
POPEN = "subprocess.Popen"
RUNS = ("run", "call", "check_call", "check_output")
RECEIVES = ("recv", "recvfrom", "recv_into", "recvmsg", "recv_fds", "accept", "connect")
CHILD = ("waitpid", "waitid", "wait3", "wait4", "wait")
GIVE_TIME = "give it a time, and say what happens when that passes"

RULES = (
    Rule(CHILD, _waits_for_child, "wait with os.pidfd_open and select.select, or with os.WNOHANG"),
    Rule(("wait", "join", "result"), _alone, GIVE_TIME),
    Rule(("get",), _of_a_queue, GIVE_TIME),
    Rule(("acquire",), _acquires, "give it a time, or guard a short section by a with statement"),
    Rule(("wait_for",), lambda c, n: _is_method(c) and _lacks(1)(c, n), GIVE_TIME),
    Rule(("communicate",), lambda c, n: _is_method(c) and _lacks(1)(c, n), GIVE_TIME),
    Rule(RUNS, _of("subprocess", 99), "give it timeout=SECONDS"),
    Rule(("wait", "as_completed"), _of("concurrent.futures", 1), GIVE_TIME),
    Rule(("select",), _of("select", 3), "give it a time as fourth argument"),
    Rule(("select",), _alone, GIVE_TIME),
    Rule(("poll",), _polls, GIVE_TIME),
    Rule(RECEIVES, _socket_blocks, "call settimeout or setblocking(False) on the socket"),
    Rule(("recv",), _receives, "ask poll(SECONDS) first"),
    Rule(("read", "read1", "readline", "readlines"), _reads, "use select.select with a time first"),
    Rule(("read", "readv"), _reads_descriptor, "use select.select with a time first"),
    Rule(("input", "pause", "sigwait", "system"), _asks, "use a call that takes a time"),
    Rule(("flock", "lockf"), _locks_file, "use LOCK_NB, and say what happens when it is taken"),
    Rule(("Thread",), _outlives, "give it daemon=True, or the program's end waits for it"),
)

_CALLED = {n for rule in RULES if rule.found not in (_alone, _of_a_queue) for n in rule.names}
_BARE = {n for rule in RULES for n in rule.names} - _CALLED
MENTIONED = re.compile(
    r"\.std(in|out|err)\b|\b(Popen|sleep)\b"
    rf"|(\b|\\n)({'|'.join(_CALLED)})(\(| as )"
    rf"|\.({'|'.join(_BARE)})\(\s*(\)|None|-1|math|inf|float|\w+\s*=)"
)
"""What stands in every file that has a wait, and is found faster than a syntax tree: its name is
called, or imported under another one; those that wait only where they get no time, without one."""
