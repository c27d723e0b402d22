"""The compiled library: loaded once, called through ctypes, which knows no torch and no Python."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from rlt_kernels import native


class NativeLibrary:
    """The functions of csrc/*.cu in the library at `path`. OSError where it cannot be loaded."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self._silu_mul = loaded.rlt_silu_mul
        self._silu_mul.argtypes = [
            ctypes.c_int,
            *(ctypes.c_void_p,) * 2,
            *(ctypes.c_int64,) * 3,
            ctypes.c_int,
            ctypes.c_void_p,
        ]
        self._text = loaded.rlt_error_text
        self._text.argtypes, self._text.restype = [ctypes.c_int], ctypes.c_char_p

    def silu_mul(
        self,
        half: bool,
        gate_up: int,
        out: int,
        rows: int,
        width: int,
        stride: int,
        overlap: bool,
        stream: int,
    ) -> None:
        """rlt_silu_mul on addresses; `stride` in values. RuntimeError where CUDA refuses."""
        code = self._silu_mul(half, gate_up, out, rows, width, stride, overlap, stream)
        if code:
            raise RuntimeError(f"native.silu_mul: CUDA says '{self._text(code).decode()}'")


@cache
def load_library() -> NativeLibrary:
    """The library of this install."""
    return NativeLibrary(native.LIBRARY)
