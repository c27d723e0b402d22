"""SiLU of the gate times up, compiled with nvcc: the bits of the reference in plain torch."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from rlt_kernels.launch import can_overlap
from rlt_kernels.native.loader import load_library

_can_overlap = cache(can_overlap)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [R, 2F] (gate first), bfloat16 or float16 on a GPU, rows any stride apart -> silu of
    the gate, rounded to the dtype, times up: [R, F].

    Raises ValueError for what does not fit, columns that are not contiguous among it.
    """
    _check(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    device = gate_up.device
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=device)
    # A launch goes to the current device, whatever its stream's is.
    with torch.cuda.device(device):
        load_library().silu_mul(
            gate_up.dtype == torch.float16,
            gate_up.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            gate_up.stride(0),
            _can_overlap(device),
            torch.cuda.current_stream(device).cuda_stream,
        )
    return out


def _check(gate_up: Tensor) -> None:
    said = f"native.silu_mul: gate_up {list(gate_up.shape)}"
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"{said} does not fit: wanted [R, 2 F]")
    if gate_up.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"{said} is {gate_up.dtype}; it takes bfloat16 and float16")
    if gate_up.stride(1) != 1:
        strides = list(gate_up.stride())
        raise ValueError(f"{said} has strides {strides}: its columns must be contiguous")
    if gate_up.device.type != "cuda":
        raise ValueError(f"{said} lies on {gate_up.device}; it runs on a CUDA device")
