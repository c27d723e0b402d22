"""SiLU of the gate times up, as one function for every kernel that needs it."""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def,untyped-decorator"


@triton.jit
def silu_times(gate, up):
    """silu(gate) in float32, rounded to the dtype, times up, rounded: both of one dtype.

    The division is the correctly rounded one: an approximate one could differ with the code
    around it.
    """
    wide = gate.to(tl.float32)
    silu = tl.math.div_rn(wide, tl.exp(-wide) + 1.0).to(gate.dtype)
    return (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)
