"""The inputs of captured ticks: changes of pages and limits, decode rows, padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlt_core.kv.plan import CHUNK_KEYS
from rlt_core.runtime.batch import I64, NUM_PROMPT_COLUMNS, PromptRows, TickInput
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.inbox import Inbox
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick_inputs import TickInputs
from rlt_core.runtime.tick_rows import TickTensors

# Table changes that one captured tick applies; a tick with more of them is not replayed.
NUM_CHANGES = 1024


class DecodeInputs:
    """Ticks of up to `most` decode slots of `fan` rows and no prompt row. `inbox` is where they
    read."""

    def __init__(
        self, config: EngineConfig, slots: Slots, inputs: TickInputs, most: int, fan: int
    ) -> None:
        self._inputs, self._fan = inputs, fan
        self._num_slots, self._chunks = config.num_slots, config.table_width * config.page_size
        self._chunks //= CHUNK_KEYS
        self._idle = slots.tables[:-1].numel()  # an entry of the sentinel slot
        self.inbox = Inbox(self._shapes(most), slots.device)

    def fits(self, tick: TickInput) -> bool:
        """Whether these ticks can be this one."""
        return not len(tick.prompt) and 0 < len(tick.decode_slots) and self._may_be(tick)

    def fill(self, tick: TickInput, rows: int) -> None:
        """Send a tick that is padded to `rows` decode rows; padding touches the sentinel alone."""
        host = self.inbox.host()
        self._fill(host, tick, rows)
        self.inbox.send()

    def tensors(self, rows: int) -> TickTensors:
        """The tick of `rows` decode rows that reads the inbox."""
        parts = self.inbox.parts
        columns = np.zeros((NUM_PROMPT_COLUMNS, 0), np.int64)
        prompt = PromptRows(tick=0, columns=columns, cell_start=np.zeros(1, np.int64))
        slots = np.arange(rows)
        made = self._inputs.of(0, slots, prompt, self._chunks, self._fan, sentinel=False)
        return replace(
            made,
            tick=parts["number"][0],
            decode_slots=parts["slots"][:rows],
            least_acceptance=parts["least"][0],
        )

    def idle(self, rows: int) -> None:
        """Send a tick of `rows` decode rows in which nothing happens, to capture on."""
        host = self.inbox.host()
        host["number"][0], host["limits"][:], host["slots"][:] = 0, 0, self._num_slots
        host["least"][0] = 0
        host["at"][:], host["page"][:] = self._idle, 0
        self._idle_rows(host, rows)
        self.inbox.send()

    def _shapes(self, most: int) -> dict[str, tuple[int, ...]]:
        return {
            "number": (1,),
            "least": (1,),
            "limits": (self._num_slots,),
            "slots": (most,),
            "at": (NUM_CHANGES,),
            "page": (NUM_CHANGES,),
        }

    def _may_be(self, tick: TickInput) -> bool:
        return len(tick.table_at) <= NUM_CHANGES and self._inputs.fan_of(tick) == self._fan

    def _fill(self, host: dict[str, I64], tick: TickInput, rows: int) -> None:
        host["number"][0], host["limits"][:] = tick.tick, tick.page_limit
        host["least"][0] = tick.least_acceptance
        num, changes = len(tick.decode_slots), len(tick.table_at)
        host["slots"][:num], host["slots"][num:] = tick.decode_slots, self._num_slots
        host["at"][:changes], host["at"][changes:] = tick.table_at, self._idle
        host["page"][:changes], host["page"][changes:] = tick.table_page, 0

    def _idle_rows(self, host: dict[str, I64], rows: int) -> None:
        """What is sent beside that; nothing here."""
