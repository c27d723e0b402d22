"""The device's arrays: slots, homes, page tables, parameters. Allocated once, changed in place.

Index S of every per-slot array is the sentinel slot: padded rows read and write there. Homes are
the slots, the sentinel, then the P prompt places: home of place p is S + 1 + p; lanes of slots
come last. So a slot's index is also its home's index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlt_core.contract.protocols import StateSpec
from rlt_core.contract.specs import ParamSpec
from rlt_core.runtime.batch import NUM_BIAS, NUM_STOP_IDS
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.lanes import Lanes
from rlt_core.runtime.masks import SlotMasks
from rlt_core.runtime.options import OptionSlots
from rlt_core.runtime.upload import Upload

# Phases of a slot.
EMPTY, PROMPT, READY, RUN, LEAVING, DONE = range(6)

_INTS = ("loops", "min_loops", "max_loops", "prompt_len", "max_tokens", "max_position", "top_k")
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class Slots:
    """All per-slot and per-home tensors of one stage.

    token, position, depth, num_out, phase int64 [S + 1]; page_limit int64 [S + 1] (0 for the
    sentinel: it always parks); state [homes, W]; read_state the same when the mode is full;
    read_depth int64 [homes] (0: not decided yet); tables int32 [S + 1, table rows, pages].
    options: the model's own; None for a model without any. lanes: where tokens are guessed ahead.
    key_depth: int64 [S + 1, positions + 1], the KV depth of every position (the engine's largest
    until its row leaves); None unless the layout hides what an exit left unwritten.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        table_rows: int,
        table_width: int,
        state_width: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
        full: bool,
        hides: bool,
        policy_state: Sequence[StateSpec],
        policy_params: Sequence[ParamSpec],
        options: OptionSlots | None = None,
        num_lanes: int = 0,
    ) -> None:
        s, first_lane = config.num_slots, config.num_slots + 1 + config.num_places
        self.homes = first_lane + (s + 1) * num_lanes
        self.sentinel, self.vocab_size, self.device = s, vocab_size, device
        self.config, self.upload = config, Upload(device)

        def ints(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int64, device=device)

        self.phase, self.token, self.position = ints(s + 1), ints(s + 1), ints(s + 1)
        self.depth, self.num_out, self.left_at = ints(s + 1), ints(s + 1), ints(s + 1)
        self.page_limit = ints(s + 1)
        self.tables = torch.zeros(
            (s + 1, table_rows, table_width), dtype=torch.int32, device=device
        )
        self.state = torch.zeros((self.homes, state_width), dtype=dtype, device=device)
        self.read_state = torch.zeros_like(self.state) if full else self.state
        self.read_depth = ints(self.homes)
        self.policy_specs = tuple(policy_state)
        self.policy_state = {
            spec.name: torch.full(
                (self.homes, *spec.shape),
                spec.initial,
                dtype=getattr(torch, spec.dtype),
                device=device,
            )
            for spec in policy_state
        }
        self.int_params = {name: ints(s + 1, fill=1) for name in _INTS}
        self.float_params = {
            name: torch.zeros(s + 1, dtype=torch.float32, device=device) for name in _FLOATS
        }
        self.use_policy = torch.zeros(s + 1, dtype=torch.bool, device=device)
        self.seed, self.state_seed = ints(s + 1), ints(s + 1)
        self.options = options
        if options is not None:
            options.bind_seed(self.state_seed)
        self.stop_ids = ints(s + 1, NUM_STOP_IDS, fill=-1)
        self.scalar_params = {
            spec.name: torch.zeros(s + 1, dtype=torch.float32, device=device)
            for spec in policy_params
            if spec.kind != "depths"
        }
        # One column more than positions: the entry of a row at the last position is readable.
        self.trace = {
            spec.name: ints(s + 1, config.max_len + 1)
            for spec in policy_params
            if spec.kind == "depths"
        }
        self.key_depth: Tensor | None = None
        if hides:
            # One column more: a finished slot may stand one past its last page.
            shape = (s + 1, config.table_width * config.page_size + 1)
            self.key_depth = ints(*shape, fill=config.max_depth)
        # Made when a request first needs them: 5 bytes a slot and vocabulary entry, masks a bit.
        self.lanes = Lanes(num_lanes, first_lane, self.homes, s, device) if num_lanes else None
        self.masks: SlotMasks | None = None
        self.counts: Tensor | None = None
        self.in_prompt: Tensor | None = None
        self.bias_ids: Tensor | None = None
        self.bias_values: Tensor | None = None

    def clear(self, slots: Tensor) -> None:
        """Empty slots whose request ended, was aborted or preempted."""
        self.phase.index_fill_(0, slots, EMPTY)
        self.tables.index_fill_(0, slots, 0)
        if self.lanes is not None:
            self.lanes.clear(slots)

    def resume(self, slot: Tensor, token: Tensor, position: Tensor) -> None:
        """Admitted requests whose pages came back go on: int64 [N] each."""
        self.phase.index_fill_(0, slot, READY)
        self.token[slot], self.position[slot] = token, position

    def row_params(self, slot: Tensor, position: Tensor) -> Mapping[str, Tensor]:
        """Policy parameters of rows: slot, position int64 [R] -> {name: [R]}."""
        out = {name: values[slot] for name, values in self.scalar_params.items()}
        if not self.trace:
            return out
        index = (position - self.int_params["prompt_len"][slot] + 1).clamp(0, self.config.max_len)
        for name, values in self.trace.items():
            out[name] = values[slot, index]
        return out

    def policy_rows(self, homes: Tensor, enters: Tensor) -> dict[str, Tensor]:
        """The policy's state of rows [R, ...]; start values where they enter at depth 1."""
        found = {}
        for spec in self.policy_specs:
            kept = self.policy_state[spec.name][homes]
            where = enters.view(-1, *([1] * len(spec.shape)))
            found[spec.name] = torch.where(where, torch.full_like(kept[:1], spec.initial), kept)
        return found

    def note_depth(
        self, slot: Tensor, position: Tensor, depth: Tensor | None, where: Tensor
    ) -> None:
        """Set the KV depth of rows' positions where `where`, all [R]; None: the largest. Nothing
        unless the layout hides keys."""
        if self.key_depth is not None:
            # The others write to the sentinel, so that no entry is written twice.
            at = torch.where(where, slot, self.sentinel)
            most = torch.full_like(position, self.config.max_depth)
            self.key_depth[at, position] = most if depth is None else depth

    def make_room(self) -> None:
        """Make what the first penalty, bias or mask would, for graphs that are captured before it,
        and the tables of options."""
        self.make_counts()
        self.make_bias()
        self.make_masks()
        if self.options is not None:
            self.options.make_room()

    @property
    def version(self) -> int:
        """Changes when an array gives way to another, which a captured graph would not see."""
        return 0 if self.options is None else self.options.version

    def make_masks(self) -> SlotMasks:
        """The masks of the slots, made when they are first needed."""
        if self.masks is None:
            self.masks = SlotMasks(self.sentinel, self.vocab_size, self.device)
        return self.masks

    def make_counts(self) -> tuple[Tensor, Tensor]:
        """How often each token was generated, and whether the prompt has it; made as the bias."""
        if self.counts is None or self.in_prompt is None:
            shape = (self.sentinel + 1, self.vocab_size)
            self.counts = torch.zeros(shape, dtype=torch.int32, device=self.device)
            self.in_prompt = torch.zeros(shape, dtype=torch.bool, device=self.device)
        return self.counts, self.in_prompt

    def make_bias(self) -> tuple[Tensor, Tensor]:
        """Ids (-1: none) and values of biased tokens, made when they are first needed."""
        if self.bias_ids is None or self.bias_values is None:
            shape = (self.sentinel + 1, NUM_BIAS)
            self.bias_ids = torch.full(shape, -1, dtype=torch.int64, device=self.device)
            self.bias_values = torch.zeros(shape, dtype=torch.float32, device=self.device)
        return self.bias_ids, self.bias_values
