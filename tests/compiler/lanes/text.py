"""A prototype of decision 31: what the lowering for SIMD cores makes, instructions over lanes, in
a text format that is no C. The instructions are read from LLVM text, which stands for the level of
its own that the decision is about; the format is Python over numpy."""

import re

NAMES = "(?:%\\w+ = )?"
LABEL = re.compile(r"(\w+):$")
RESULT = re.compile(r"%(\w+) = (.*)")
TYPE = r"(<\d+ x \w+>|\w+)"
TWO = re.compile(rf"(\w+)(?: nsw| nuw)? {TYPE} (.+)")
COMPARE = re.compile(rf"([if]cmp) (\w+) {TYPE} (.+)")
CONVERT = re.compile(rf"(\w+) {TYPE} (.+) to {TYPE}")
CALL = re.compile(rf"call (?:nsz )?{TYPE} @([\w.]+)\((.*)\)")
ARITHMETIC = {"fadd", "fsub", "fmul", "fdiv", "frem", "add", "sub", "mul", "sdiv", "udiv", "srem"}
ARITHMETIC |= {"urem", "and", "or", "xor"}
ARITHMETIC |= {"shl", "lshr", "ashr", "fneg"}
CONVERSIONS = {"zext", "sext", "trunc", "fpext", "fptrunc", "sitofp", "uitofp", "bitcast"}
CONVERSIONS |= {"fptosi", "fptoui"}


def python(text: str) -> str:
    """The text of `run(m, args, grid, begin, end)`, over the functions of `machine`."""
    body = text[text.index("entry:") : text.index("\n}")].splitlines()
    lines = ["def run(m, args, grid, begin, end):", "    before, at = '', 'entry'", "    while 1:"]
    for line in body:
        label = LABEL.match(line)
        if label:
            lines.append(f"        if at == {label[1]!r}:")
        else:
            lines.append(f"            {_instruction(line)}")
    return "\n".join(lines)


def _instruction(line: str) -> str:
    result = RESULT.match(line)
    name, rest = (f"{result[1]} = ", result[2]) if result else ("", line)
    op, _, tail = rest.partition(" ")
    if op == "ret":
        return "return"
    if op == "br":
        return _branch(tail)
    if op == "phi":
        kind, ways = re.match(rf"{TYPE} (.*)", tail).groups()
        cases = re.findall(r"\[(.+?), %(\w+)\](?:, |$)", ways)
        text = ", ".join(f"{b!r}: lambda: {_operand(kind, v)}" for v, b in cases)
        return f"{name}{{{text}}}[before]()"
    if op == "alloca":
        count, kind = re.match(r"\[(\d+) x (\w+)\]", tail).groups() if "[" in tail else (1, "i64")
        return f"{name}m.room({count}, {kind!r})"
    if op == "getelementptr":
        kind, base, index = re.match(rf"{TYPE}, ptr (\S+), (.+)", tail).groups()
        return f"{name}m.place({kind!r}, {_operand('ptr', base)}, {_typed(index)})"
    if op == "load":
        kind, where = re.match(rf"{TYPE}, ptr (\S+), align", tail).groups()
        return f"{name}m.load({kind!r}, {_operand('ptr', where)})"
    if op == "store":
        value, where = re.match(r"(.*), ptr (\S+), align", tail).groups()
        return f"m.store({_operand('ptr', where)}, {_typed(value)})"
    if op == "call":
        _, function, given = CALL.match(rest).groups()
        values = ", ".join(_typed(g.replace("immarg ", "")) for g in _split(given))
        return f"{name}m.call({function!r}, {values})"
    if op in ("select", "insertelement", "extractelement", "shufflevector"):
        return f"{name}m.{op}({', '.join(map(_typed, _split(tail)))})"
    if found := COMPARE.match(rest):
        how, kind = found[1] + "_" + found[2], found[3]
        return f"{name}m.compare({how!r}, {_operands(kind, found[4])})"
    if op in CONVERSIONS:
        _, kind, value, to = CONVERT.match(rest).groups()
        return f"{name}m.convert({op!r}, {to!r}, {_operand(kind, value)})"
    assert op in ARITHMETIC, line
    found = TWO.match(rest)
    return f"{name}m.compute({op!r}, {_operands(found[2], found[3])})"


def _branch(tail: str) -> str:
    labels = re.findall(r"label %(\w+)", tail)
    if len(labels) == 1:
        return f"before, at = at, {labels[0]!r}; continue"
    condition = _operand("i1", re.match(r"i1 (\S+),", tail)[1])
    return f"before, at = at, {labels[0]!r} if {condition} else {labels[1]!r}; continue"


def _split(text: str) -> list[str]:
    """Operands between commas that are in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<([") - (c in ">)]")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def _typed(text: str) -> str:
    kind, value = re.match(rf"{TYPE} (.+)", text).groups()
    return _operand(kind, value)


def _operands(kind: str, text: str) -> str:
    return ", ".join(_operand(kind, x) for x in _split(text))


def _operand(kind: str, text: str) -> str:
    if text.startswith("%"):
        return text[1:]
    if text.startswith("<"):
        values = [x.split(" ", 1)[1] for x in _split(text[1:-1])]
        return f"m.constant({kind!r}, {values})"
    value = re.sub(r"splat \(\w+ (.+)\)", r"\1", text)
    return f"m.constant({kind!r}, {value!r})"
