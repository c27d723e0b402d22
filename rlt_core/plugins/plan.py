"""What was chosen (Choice) and what it became (Plan). Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlt_core.contract.capabilities import Word
from rlt_core.contract.specs import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    KVLayoutSpec,
    ModelShape,
    ModelSpec,
    OpSpec,
    PromptModeSpec,
    StrategySpec,
)

ExitMode = Literal["skip", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Everything that must fit together. None asks the system to pick, and it says what it took.

    `model` is a model's id, or None when `model_path` decides by its config.json.
    """

    model_path: str | None = None
    model: str | None = None
    kv_layout: str | None = None
    exit_policy: str | None = None
    exit_mode: ExitMode = "skip"
    strategy: str | None = None
    draft_depth: int | None = None
    prompts: str | None = None
    attention: str | None = None
    ops: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    dtype: str | None = None
    exact: bool = True
    graphs: bool | None = None
    role: Literal["unified", "prefill", "decode"] = "unified"
    page_size: int | None = None
    max_depth: int | None = None
    ignore_config: frozenset[str] = frozenset()

    @property
    def kv_page_size(self) -> int:
        """Positions of a page: as asked for, or what suits the device. A GPU's copy engine brings
        64 positions at once; small pages waste less where memory is read by ordinary loads."""
        if self.page_size is not None:
            return self.page_size
        return 64 if self.device.startswith("cuda") else 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a spec came from, for messages, `rlt plugins` and logs."""

    plugin: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A choice that passed every check. `notes` are sentences on what the system picked.
    draft_depth: loops after which a token is guessed; 0: none is."""

    choice: Choice
    model: ModelSpec
    shape: ModelShape
    layout: KVLayoutSpec
    policy: ExitPolicySpec
    exit_mode: ExitMode
    strategy: StrategySpec
    prompts: PromptModeSpec
    attention: AttentionSpec
    ops: Mapping[str, OpSpec]
    device: str
    dtype: str
    max_depth: int
    draft_depth: int = 0
    notes: tuple[str, ...] = ()

    @property
    def graphs(self) -> bool:
        """Whether ticks are captured: asked for, or left open on a device that can."""
        if self.choice.graphs is not None:
            return self.choice.graphs
        return self.device.startswith("cuda") and Word.GRAPH_SAFE in self.model.provides

    @property
    def num_lanes(self) -> int:
        """Rows of one request that may be in flight together; 0 where a slot is its one row."""
        if self.strategy.entry is not Entry.ON_GUESS:
            return 0
        # In mode full a row goes on to full depth behind its successors, whenever it was read.
        if self.exit_mode == "full" or not self.draft_depth:
            return self.max_depth if self.exit_mode == "full" else 1
        return -(-self.max_depth // self.draft_depth)

    @property
    def num_trailing(self) -> int:
        """The last positions of a request whose rows may still be on their way to full depth when
        it loses its slot: they are then not written in every plane."""
        return self.max_depth if self.num_lanes and self.exit_mode == "full" else 0

    @property
    def exit_defaults(self) -> Mapping[str, float]:
        """The checkpoint's values for the policy's parameters: they were chosen for the policy
        that the checkpoint names, and say nothing of another one's parameter of the same name."""
        return self.shape.exit_defaults if self.policy.id == self.shape.exit_policy else {}
