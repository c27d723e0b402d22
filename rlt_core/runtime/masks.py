"""The masks of the slots: which tokens a slot's next output may be, and which output that is."""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.runtime.batch import SlotParams
from rlt_core.runtime.mask_rows import WORD_BITS, MaskRows, num_words
from rlt_core.runtime.upload import Upload


class SlotMasks:
    """masked bool [S + 1]: the request draws under masks. index int64 [S + 1]: the output that the
    slot's mask is for, -1 for none yet. words int32 [S + 1, num_words], as in MaskRows.

    The sentinel slot, the last, has no masks.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._upload = vocab_size, Upload(device)
        shape = (num_slots + 1, num_words(vocab_size))
        self.words = torch.zeros(shape, dtype=torch.int32, device=device)
        self.index = torch.full((num_slots + 1,), -1, dtype=torch.int64, device=device)
        self.masked = torch.zeros(num_slots + 1, dtype=torch.bool, device=device)
        self._shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=device)

    def admit(self, slot: Tensor, new: SlotParams) -> None:
        """New residents in slots int64 [A]; their first masks follow."""
        self.masked[slot] = self._upload(new.masked)
        self.index.index_fill_(0, slot, -1)

    def put(self, new: MaskRows) -> None:
        """Masks that came."""
        slot = self._upload(new.slot)
        self.index[slot], self.words[slot] = self._upload(new.index), self._upload(new.words)

    def missing(self, slot: Tensor, output: Tensor) -> Tensor:
        """Which of these slots [R] may not give output number [R] yet: bool [R]."""
        return self.masked[slot] & (self.index[slot] != output)

    def allowed(self, slot: Tensor) -> Tensor:
        """What these slots [E] may draw: bool [E, V]; everything where there are no masks."""
        bits = (self.words[slot][:, :, None] >> self._shifts) & 1
        allowed = bits.flatten(1)[:, : self._vocab_size].bool()
        return allowed | ~self.masked[slot][:, None]
