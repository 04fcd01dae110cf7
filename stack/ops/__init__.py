"""The graph's operators: each one row of the table `OPS`, beside the function that makes its nodes.

Constructors raise GraphError. Operands of an elementwise operator have one shape and element type:
expand and cast are explicit. Axes may be negative and count from the end. A movement, cast or
reduction that changes nothing gives its operand itself.
"""

from stack.ops.attention import *
from stack.ops.binary import *
from stack.ops.control import *
from stack.ops.convert import *
from stack.ops.division import *
from stack.ops.exchange import *
from stack.ops.grouped import *
from stack.ops.index import *
from stack.ops.leaves import *
from stack.ops.movement import *
from stack.ops.products import *
from stack.ops.random import *
from stack.ops.reductions import *
from stack.ops.scans import *
from stack.ops.sort import *
from stack.ops.special import *
from stack.ops.table import *
from stack.ops.unary import *
