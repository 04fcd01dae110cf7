"""The row of the toy."""

from dataclasses import replace

from stack.compiler.targets.table import SIMD
from tests.compiler.toy import text

TOY = replace(
    SIMD,
    name="Python",
    matches=lambda info: text.FORMAT in info.formats,
    writers={text.FORMAT: text.render},
)
