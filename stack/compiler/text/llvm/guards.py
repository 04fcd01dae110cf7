"""Runtime control flow around instructions that a function writes."""

from __future__ import annotations

from collections.abc import Callable

from stack.compiler.text.llvm.tiles import TileValues


def guarded(t: TileValues, condition: str | None, write: Callable[[], None]) -> None:
    """What `write` writes runs where the condition holds (None: always)."""
    if condition is None:
        write()
        return
    inside, after = t.out.label("do"), t.out.label("next")
    t.out.branch(condition, inside, after)
    t.out.begin(inside)
    with t.scope():
        write()
    t.out.jump(after)
    t.out.begin(after)


def either(
    t: TileValues, condition: str, then: Callable[[], None], orelse: Callable[[], None]
) -> None:
    """What the one writes runs where the condition holds, else what the other writes."""
    first, second, after = t.out.label("do"), t.out.label("else"), t.out.label("next")
    t.out.branch(condition, first, second)
    for label, write in ((first, then), (second, orelse)):
        t.out.begin(label)
        with t.scope():
            write()
        t.out.jump(after)
    t.out.begin(after)


def counted(t: TileValues, stop: str, write: Callable[[str], None]) -> None:
    """What `write(i)` writes runs for i in range(stop), an i64 operand."""
    before, body, after = t.out.block, t.out.label("loop"), t.out.label("done")
    t.out.branch(t.out.put(f"icmp sgt i64 {stop}, 0"), body, after)
    t.out.begin(body)
    index, place = t.out.name(), t.out.hole()
    with t.scope():
        write(index)
    following = t.out.put(f"add nsw i64 {index}, 1")
    last = t.out.block
    t.out.fill(place, f"{index} = phi i64 [0, %{before}], [{following}, %{last}]")
    t.out.branch(t.out.put(f"icmp slt i64 {following}, {stop}"), body, after)
    t.out.begin(after)
