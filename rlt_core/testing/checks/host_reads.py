"""A dispatch mode that refuses what a graph cannot hold, and counts operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlt_core.testing.checks.check import CheckFailed

_FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "item", "_unique2")
_INDEXED = ("index", "index_put", "index_put_")


class LightMode(TorchDispatchMode):
    """A dispatch mode without torch's compiler, which torch imports for any other: it takes
    seconds, and nothing is compiled here."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class NoHostReads(LightMode):
    """Counts operators in `count`; a host read or a shape that depends on data fails the check.

    what: the code that runs, for the message.
    """

    def __init__(self, what: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it bare
        self.what, self.count = what, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _FORBIDDEN:
            raise CheckFailed(f"{self.what} to read nothing back to the host", f"a call of {name}")
        # A mask among the indices hides its nonzero inside the operator.
        if name in _INDEXED and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]
        ):
            raise CheckFailed(f"{self.what} to have fixed shapes", f"{name} with a mask")
        self.count += 1
        return func(*args, **(kwargs or {}))
