"""A dispatch mode that refuses what a graph cannot hold, and counts operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlt_core.testing.checks.check import CheckFailed

_FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "item", "_unique2")
_PUTS = ("index_put", "index_put_", "copy_")
_INDEXED = ("index", "index_put", "index_put_")


class LightMode(TorchDispatchMode):
    """A dispatch mode without torch's compiler, which torch imports for any other: it takes
    seconds, and nothing is compiled here."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class HostNumbers:
    """Finds `x[index] = 0`, whose number a GPU would copy from the host's memory as a CPU does not
    show; a graph cannot hold that. `index_fill_` and `torch.where` take numbers along."""

    def __init__(self) -> None:
        # Kept, so that no later tensor is taken for one of them.
        self._lifted: dict[int, Tensor] = {}

    def copied(self, name: str, args: Sequence[Any], out: Any) -> bool:
        """Whether this operator, which gave `out`, does that."""
        if name == "lift_fresh":
            self._lifted[id(out)] = out
        return name in _PUTS and any(id(value) in self._lifted for value in args[1:])


class NoHostReads(LightMode):
    """Counts operators in `count`; a host read, a copy of a number from the host or a shape that
    depends on data fails the check.

    what: the code that runs, for the message.
    """

    def __init__(self, what: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it bare
        self.what, self.count, self._numbers = what, 0, HostNumbers()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _FORBIDDEN:
            raise CheckFailed(f"{self.what} to read nothing back to the host", f"a call of {name}")
        # A mask among the indices hides its nonzero inside the operator.
        if name in _INDEXED and any(
            isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1]
        ):
            raise CheckFailed(f"{self.what} to have fixed shapes", f"{name} with a mask")
        self.count += 1
        out = func(*args, **(kwargs or {}))
        if self._numbers.copied(name, args, out):
            raise CheckFailed(f"{self.what} to copy no number to the device", f"{name} of a number")
        return out
