"""One call of `flash_attn_varlen_func`, the same for both FlashAttention packages."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlt_core.contract.errors import PluginError
from rlt_kernels.attention.flash_spans import Spans
from rlt_kernels.flash_library import FOUR, FlashLibrary, find_library

_FUNCTION = "flash_attn_varlen_func"
_BOTH = ("cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal")
_TWO = (*_BOTH, "cu_seqlens_k", "block_table", "return_attn_probs")
_FOUR = (*_BOTH, "seqused_k", "page_table", "return_lse")


def load_call() -> FlashCall:
    """The call of the package that is installed. PluginError where there is none, where it cannot
    be imported, or where the function does not take what is given here."""
    found = find_library()
    if found is None:
        raise PluginError("kernels", "no FlashAttention package is installed (rlt doctor)")
    library, version = found
    function = _load(library, version)
    four = library is FOUR
    lacking = [n for n in (_FOUR if four else _TWO) if n not in _parameters(function)]
    if lacking:
        reason = f"{library.distribution} {version}: {_FUNCTION} takes no {', '.join(lacking)}"
        fix = f"Fix: pip install --upgrade {library.distribution}, or --attention triton"
        raise PluginError("kernels", reason, fix)
    if four:
        # Of 4.0.0b36 and cutlass 4.8, once a kernel: the answers are right all the same.
        warnings.filterwarnings("ignore", "Argument aux_data .* cannot be converted", UserWarning)
    return FlashCall(function, four=four)


class FlashCall:
    """The function of one package. four: flash-attn-4, which takes lengths where flash-attn 2 takes
    their sums, and gives two results, whether the second is wanted or not."""

    def __init__(self, function: Callable[..., Any], *, four: bool) -> None:
        self._function, self._four = function, four

    def __call__(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        spans: Spans,
        scale: float,
        *,
        logs: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """q [R, H, d], keys and values [pages, page_size, G, d] -> (out [R, H, d], and with `logs`
        float32 [H, R]: the logarithm of the sum of each row's weights, anything for no key)."""
        given: dict[str, Any] = {
            "cu_seqlens_q": spans.starts,
            "max_seqlen_q": spans.most_rows,
            "max_seqlen_k": spans.most_keys,
            "softmax_scale": scale,
            "causal": True,
        }
        if self._four:
            given |= {"seqused_k": spans.lengths, "page_table": spans.table, "return_lse": logs}
        else:
            given |= {
                "cu_seqlens_k": spans.key_starts,
                "block_table": spans.table,
                "return_attn_probs": logs,
            }
        made = self._function(q, keys, values, **given)
        out, found = (made[0], made[1]) if self._four or logs else (made, None)
        return out, found if logs else None


def _load(library: FlashLibrary, version: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(library.module), _FUNCTION)
    except (ImportError, AttributeError, OSError) as error:
        # A build for another torch or CUDA fails here, with the name of a symbol.
        reason = f"{library.distribution} {version} cannot be loaded: {error}"
        fix = "Fix: install a build for this torch, or --attention triton"
        raise PluginError("kernels", reason, fix) from error
    return function


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
