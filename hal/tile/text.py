"""Tile IR as text: the portable program format `hal-tile/1`.

    hal-tile/1
    kernel scale(x: buffer f32 reads, y: buffer f32 writes, n: scalar i64) {
      %1 = program_id axis=0 : i64
      %2 = mul %1, 16 : i64
      %3 = sub $n, %2 : i64
      %4 = load x[%2] strides(1) limits(%3) : f32[16]
      %5 = broadcast 2.0:f32 : f32[16]
      %6 = mul %4, %5 : f32[16]
      store %6 to y[%2] strides(1) limits(%3)
    }

One statement or value a line; `#` starts a comment. A value is `%number` (defined once, visible
from there to the end of its block), `$name` (a scalar parameter), or a constant: an i64 `16`, a
bool `true`, any other with its type, `2.0:f32`, `-inf:bf16`, `nan:f64`, `3:u8`. A type is `f32` (a
scalar) or `f32[16,4]`. Operations with their operands and attributes are in `hal.tile.ops`.

    kernel  NAME(NAME: buffer DTYPE [reads] [writes], NAME: scalar DTYPE, ...) { ... }
    value   %N = OP VALUE, VALUE ATTR=INT|NAME|(INT, ...) : TYPE
    block   MEMORY[VALUE] [strides(VALUE, ...)] [limits(VALUE or _, ...)]
    load    %N = load BLOCK [other(VALUE)] : TYPE
    store   store VALUE to BLOCK
    gather  %N = gather MEMORY[VALUE] [mask(VALUE)] [other(VALUE)] : TYPE
    scatter scatter VALUE to MEMORY[VALUE] [mask(VALUE)]
    atomic  atomic add|min|max|exchange VALUE to MEMORY[VALUE] [mask(VALUE)]
    memory  alloc NAME : DTYPE[SIZE]
    copy    copy BLOCK to BLOCK shape(INT, ...) channel(INT)
    order   wait channel(INT)          barrier
    if      if VALUE { ... } [else { ... }]
    for     for %N in range(VALUE, VALUE, VALUE) { ... }
            for %N in range(VALUE, VALUE, VALUE) carry(%N = VALUE, ...) {
              ...
              next VALUE, ...
            } -> %N, ...

A brace ends its line. `next` gives the carried values of the next iteration, `->` names the last.
"""

from __future__ import annotations

from hal.tile.parser import parse_kernel
from hal.tile.printer import print_kernel
from hal.tile.walk import canonical

__all__ = ["canonical", "parse_kernel", "print_kernel"]
