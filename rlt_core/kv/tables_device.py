"""The layout's tables as device tensors, so that a tick looks planes up by row."""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.contract.layouts import PlaneRule
from rlt_core.kv.plan import KVPlan


class DeviceTables:
    """Planes by (rule, loops, depth); rule 0 is the prompt's, 1 that of generated positions.

    write, read int64 [2, max_depth + 1, max_depth + 1]; fill bool [2, max_depth + 1,
    max_depth + 1, planes]: the planes that an exit at that depth fills from the plane it wrote.
    Depth 0, and depths beyond the request's loops, give plane 0 and no fill.
    """

    def __init__(self, plan: KVPlan, device: torch.device | str) -> None:
        size = plan.max_depth + 1
        self.num_planes = max(table.num_planes for table in plan.tables)
        self.write = torch.zeros((2, size, size), dtype=torch.int64)
        self.read = torch.zeros_like(self.write)
        self.fill = torch.zeros((2, size, size, self.num_planes), dtype=torch.bool)
        for loops, table in enumerate(plan.tables, 1):
            for rule, planes in enumerate((table.prompt, table.decode)):
                self._set(rule, loops, planes)
        self.write, self.read = self.write.to(device), self.read.to(device)
        self.fill = self.fill.to(device)

    def planes(self, rule: Tensor, loops: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """(write plane, read plane) of the loop `depth`: int64 [R] each."""
        return self.write[rule, loops, depth], self.read[rule, loops, depth]

    def exits(
        self, rule: Tensor, loops: Tensor, depth: Tensor, leaves: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(source plane int64 [R], target planes bool [R, planes]) for DevicePool.fill; rows
        where `leaves` is false have no targets."""
        targets = self.fill[rule, loops, depth] & leaves[:, None]
        return self.write[rule, loops, depth], targets

    def _set(self, rule: int, loops: int, planes: PlaneRule) -> None:
        self.write[rule, loops, 1 : loops + 1] = torch.tensor(planes.write)
        self.read[rule, loops, 1 : loops + 1] = torch.tensor(planes.read)
        for depth, filled in enumerate(planes.fill, 1):
            self.fill[rule, loops, depth, list(filled)] = True
