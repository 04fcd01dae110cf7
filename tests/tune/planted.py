"""Programs for cpu:0 that double float32 numbers, or should."""

from hal.core.dtypes import DType
from hal.core.values import LLVM_IR, KernelSource, Param, ParamKind
from stack.tune.orders import Extent, Trial

COUNT = 1000
EXTENTS = (Extent(4 * COUNT, DType.F32, False), Extent(4 * COUNT, DType.F32, True))
TEXT = """
declare void @llvm.trap()

define void @{name}(ptr %args, ptr %grid, i64 %begin, i64 %end) {{
entry:
  %a = load ptr, ptr %args
  %slot = getelementptr i64, ptr %args, i64 1
  %c = load ptr, ptr %slot
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %exit
body:
  %pa = getelementptr float, ptr %a, i64 %i
  %x = load volatile float, ptr %pa
  %y = fmul float %x, {factor}
  %pc = getelementptr float, ptr %c, i64 %i
  store float %y, ptr %pc
  %next = add i64 %i, {step}
  br label %head
exit:
  {last}
  ret void
}}
"""


def trial(name, factor="2.0", step=1, last="", text=None):
    """A candidate over all elements."""
    text = text or TEXT.format(name=name, factor=factor, step=step, last=last)
    params = (
        Param("a", ParamKind.BUFFER, DType.F32),
        Param("c", ParamKind.BUFFER, DType.F32, reads=False, writes=True),
    )
    return Trial(KernelSource(LLVM_IR, text, name, params), (COUNT, 1, 1), (0, 1))


RIGHT = trial("right")
AS_RIGHT = trial("as_right", last="; written in another way")
BROKEN = trial("broken", text="this is no program")
WRONG = trial("wrong", factor="2.5")
MISSING = trial("missing", step=2)
"""Writes every other element, where others wrote before."""
CRASHES = trial("crashes", last="call void @llvm.trap()")
ENDLESS = trial("endless", step=0)
