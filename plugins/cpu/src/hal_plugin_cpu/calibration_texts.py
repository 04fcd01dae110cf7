"""Texts of the programs that calibration loads and runs, as a compiler writes them."""

from hal.core.values import LLVM_IR
from hal.hosted.calibrate import Texts

_EMPTY = """
define void @empty(ptr %args, ptr %grid, i64 %begin, i64 %end) {
  ret void
}
"""

_ADDITION = """
; variant {number}
define void @add(ptr noalias readonly %args, ptr noalias readonly %grid, i64 %begin, i64 %end) {{
entry:
  %a = load ptr, ptr %args, align 8
  %b_slot = getelementptr i64, ptr %args, i64 1
  %b = load ptr, ptr %b_slot, align 8
  %c_slot = getelementptr i64, ptr %args, i64 2
  %c = load ptr, ptr %c_slot, align 8
  %width = load i64, ptr %grid, align 8
  %height_slot = getelementptr i64, ptr %grid, i64 1
  %height = load i64, ptr %height_slot, align 8
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %start, label %done
start:
  %rows = udiv i64 %begin, %width
  %x_first = urem i64 %begin, %width
  %y_first = urem i64 %rows, %height
  %z_first = udiv i64 %rows, %height
  br label %instance
instance:
  %i = phi i64 [%begin, %start], [%i_next, %instance]
  %x = phi i64 [%x_first, %start], [%x_next, %instance]
  %y = phi i64 [%y_first, %start], [%y_next, %instance]
  %z = phi i64 [%z_first, %start], [%z_next, %instance]
  %a_x = getelementptr float, ptr %a, i64 %x
  %left = load float, ptr %a_x, align 4
  %b_x = getelementptr float, ptr %b, i64 %x
  %right = load float, ptr %b_x, align 4
  %sum = fadd float %left, %right
  %c_x = getelementptr float, ptr %c, i64 %x
  store float %sum, ptr %c_x, align 4
  %i_next = add nsw i64 %i, 1
  %x_more = add nsw i64 %x, 1
  %x_ends = icmp eq i64 %x_more, %width
  %x_next = select i1 %x_ends, i64 0, i64 %x_more
  %y_step = zext i1 %x_ends to i64
  %y_more = add nsw i64 %y, %y_step
  %y_ends = icmp eq i64 %y_more, %height
  %y_next = select i1 %y_ends, i64 0, i64 %y_more
  %z_step = zext i1 %y_ends to i64
  %z_next = add nsw i64 %z, %z_step
  %more = icmp slt i64 %i_next, %end
  br i1 %more, label %instance, label %done
done:
  ret void
}}
"""

TEXTS = Texts(LLVM_IR, _EMPTY, _ADDITION)
