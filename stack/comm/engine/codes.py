"""The contract's names as the numbers of the native engine, and calls in words."""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from hal.core.dtypes import DType
from hal.core.values import CollectiveKind, ReduceKind
from stack.comm.engine.library import lib
from stack.comm.engine.names import is_known, name_of


class BitReduce(Enum):
    """Reductions of bits, of whole numbers and bools: the contract does not have them, so they are
    for arrays of the host alone."""

    BAND = "and of bits"
    BOR = "or of bits"
    BXOR = "exclusive or of bits"


Reduce = ReduceKind | BitReduce
KINDS: dict[CollectiveKind, int] = {k: getattr(lib, f"HE_{k.name}") for k in CollectiveKind}
REDUCES: dict[Reduce, int] = {r: getattr(lib, f"HE_{r.name}") for r in (*ReduceKind, *BitReduce)}
DTYPES: dict[DType, int] = {d: getattr(lib, f"HE_{d.name}") for d in DType}
NUMPY: dict[np.dtype[Any], DType] = {
    np.dtype(getattr(ml_dtypes, d.numpy, d.numpy)): d for d in DType
}
NUMPY_CODES: dict[np.dtype[Any], int] = {dtype: DTYPES[NUMPY[dtype]] for dtype in NUMPY}

KIND_OF = {code: kind for kind, code in KINDS.items()}
REDUCE_OF = {code: reduce for reduce, code in REDUCES.items()}
_DTYPE_OF = {code: dtype for dtype, code in DTYPES.items()}
REDUCING = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}


def call_in_words(call: Any) -> str:
    """A native call: "call 3: reduce (sum) of 8 f32, root 1", and what it is for, if that is
    said."""
    to = f" to rank {call.root}" if call.root >= 0 else ""
    if call.digest & lib.HE_MEETING and call.kind == lib.HE_SEND:
        what = name_of(call.digest & ~lib.HE_MEETING)
        return f"message {call.sequence}{to} that it has come to {what}"
    tag = f", tag {call.digest}" if call.digest else ""
    if call.digest and is_known(call.digest):
        tag += f" ({name_of(call.digest)})"
    if call.kind == lib.HE_SEND:
        return f"message {call.sequence}{to} of {_elements(call)}{tag}"
    if call.kind == lib.HE_RECV:
        return f"message {call.sequence} from any rank of {_elements(call)}{tag}"
    kind = KIND_OF[call.kind]
    how = f" ({REDUCE_OF[call.reduce].value})" if kind in REDUCING else ""
    root = f", root {call.root}" if call.root >= 0 else ""
    digest = f", digest {call.digest:#x}" if call.digest else ""
    of = "" if kind is CollectiveKind.BARRIER else f" of {_elements(call)}"
    name = f" ({name_of(call.name)})" if call.name else ""
    return f"call {call.sequence}: {kind.value}{how}{of}{root}{digest}{name}"


def _elements(call: Any) -> str:
    return f"{call.count} {_DTYPE_OF[call.dtype].short}"
