"""The model and the choice of parts that a benchmark runs with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rlt_core.contract.errors import OptionError
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve
from rlt_core.stage.build import check_device
from rlt_core.stage.config import StageConfig

CUDA_ROWS, CPU_ROWS = 2048, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The model and the choice of parts; None asks the system to pick.

    model: a folder, an installed model's id, or None for the demo. random_weights: the seed of
    weights that are drawn instead of read. num_rows: prompt rows in progress. prompts_first: no
    decode row moves while there are prompts.
    """

    model: str | None = None
    random_weights: int | None = None
    strategy: str = "refill"
    draft_depth: int | None = None
    prompts: str | None = None
    prompts_first: bool = True
    exit_policy: str = "fixed"
    kv_layout: str | None = None
    attention: str | None = None
    ops: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    dtype: str | None = None
    exact: bool = True
    graphs: bool | None = None
    page_size: int | None = None
    num_rows: int | None = None
    chunk_size: int | None = None
    ignore_config: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def rows(self) -> int:
        """Prompt rows in progress."""
        return self.num_rows or (CUDA_ROWS if self.on_gpu else CPU_ROWS)

    def config(self) -> StageConfig:
        """Without the sizes of residents and pool."""
        return StageConfig(
            model_path=self.model,
            random_weights=self.random_weights,
            strategy=self.strategy,
            draft_depth=self.draft_depth,
            prompts=self.prompts,
            exit_policy=self.exit_policy,
            kv_layout=self.kv_layout,
            attention=self.attention,
            ops=self.ops,
            device=self.device,
            dtype=self.dtype,
            exact=self.exact,
            graphs=self.graphs,
            page_size=self.page_size,
            num_rows=self.rows,
            chunk_size=self.chunk_size,
            # The same prompts run again and again, and are to be computed each time.
            prefix_cache=False,
            swap_memory=0,
            ignore_config=self.ignore_config,
        )


def check_setting(setting: Setting, registry: Registry) -> Plan:
    """The plan of a setting, before anything is measured. Raises RltErrors."""
    plan = resolve(setting.config().choice(), registry)
    check_device(plan.device)
    return plan


def check_length(
    plan: Plan,
    option: str,
    value: int,
    total: int,
    fix: str = "Fix: a smaller --context or --new-tokens",
) -> None:
    """Raise OptionError where a request of `total` positions is more than the model has."""
    most = plan.shape.max_positions
    if total > most:
        reason = f"a request would have {total:,} positions, and the model has {most:,}"
        raise OptionError(option, value, reason, fix)


def setting_dict(setting: Setting, plan: Plan) -> dict[str, object]:
    """What was chosen and what it became, for JSON; a folder by its last name."""
    return plan_dict(plan, setting.random_weights, setting.config().num_rows)


def plan_dict(plan: Plan, random_weights: int | None, num_rows: int | None) -> dict[str, object]:
    """`setting_dict` of a plan."""
    return {
        "model": plan.model.id,
        "folder": os.path.basename(os.path.normpath(str(Path(plan.choice.model_path or ".")))),
        "random_weights": random_weights,
        "loops": plan.shape.loops,
        "device": plan.device,
        "dtype": plan.dtype,
        "exact": plan.choice.exact,
        "graphs": plan.graphs,
        "kv_layout": plan.layout.id,
        "exit_policy": plan.policy.id,
        "exit_mode": plan.exit_mode,
        "attention": plan.attention.id,
        "ops": {op: spec.id for op, spec in sorted(plan.ops.items())},
        "page_size": plan.choice.kv_page_size,
        "num_rows": num_rows,
    }
