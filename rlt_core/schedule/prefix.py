"""What a request may take from the prefix cache, and what it leaves there.

The KV of a position depends on the tokens up to it, on the KV depth of each of them, on the number
of loops and on the model's own options; model, layout and exit mode are those of the stage. A
block's key chains all of these (kv.prefix.chain_keys), so that what is found is what the request
would have computed, to the bit: attention's chunks count from position 0, and no operator
depends on how a prompt is cut.

A prompt's positions have the depth `loops`. So a prompt finds what prompts left and generated
blocks that ran to full depth (all of them in mode full); other generated blocks serve the resume
of their own request alone. By layout:

- planes kept after the prompt and one rule for prompts and outputs (last_exited, shared): both are
  published. Under `shared` a position holds its last values, and whoever reads it reads those;
- planes dropped after the prompt (last_step): prompts alone, while all their planes are there;
- two rules: prompts alone;
- hidden keys: full depth alone, as a found position counts as seen by every depth.

In mode full the coda's KV comes from the state that was read out: where a coda has layers, an
output's KV depth is its exit depth, and the prompt's last position counts as an output.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from rlt_core.kv.pages import HostPages
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.prefix import Block, chain_keys, keeps_outputs
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import I32, I64
from rlt_core.schedule.forced import Forced
from rlt_core.schedule.record import Record
from rlt_core.schedule.request import EngineRequest

_MOST_ROOTS = 256


class Prefixes:
    """The cache as requests see it; `on` False: nothing is ever found or left."""

    def __init__(self, plan: Plan, kv: KVPlan, pages: HostPages, *, on: bool) -> None:
        self.on, self._pages, self._size = on, pages, kv.page_size
        self._salt = (plan.model.id, plan.layout.id, plan.exit_mode, plan.dtype)
        self._full, self._hides = plan.exit_mode == "full", kv.hides
        self._reads_coda = self._full and plan.shape.has_coda_layers
        self._trailing = plan.num_trailing
        # Whether an output may be found by others though it was read below full depth.
        self.keeps_early = self._full and not self._reads_coda
        self._roots: dict[tuple[int, int], bytes] = {}  # of requests without options
        self._outputs = [keeps_outputs(tables) for tables in kv.tables]

    def find(self, record: Record, forced: Forced) -> tuple[list[Block], list[bytes]]:
        """The blocks that the request begins with, and the keys of those that it could have found
        beside them. At least one of its positions, and every one whose logprob is wanted, is
        left to be computed."""
        chain: list[Block] = []
        keys = self.keys(record, forced)
        if not keys:
            return chain, keys
        wanted = keys[: self._most(record, forced) // self._size]
        for key in wanted:
            block = self._pages.cache.get(key)
            if block is None:
                break
            chain.append(block)
        return chain, wanted[len(chain) :]

    def keys(self, record: Record, forced: Forced) -> list[bytes]:
        """Keys of the whole pages of its known positions, made once."""
        if record.keys is None:
            record.keys = []
            if self.on and len(forced) >= self._size:
                depths = self._depths(forced, record.depths) if len(record.depths) else None
                record.keys = chain_keys(
                    self._root(record.request), forced.tokens, depths, self._size, forced.loops
                )
        return record.keys

    def num_prompt_blocks(self, forced: Forced) -> int:
        """Blocks that hold nothing but prompt positions of full depth."""
        return max(forced.border - self._reads_coda, 0) // self._size

    def prompt_done(self, record: Record, forced: Forced, end: int) -> list[bytes]:
        """The request's positions before `end` are written by the tick being built; the keys of
        blocks that can be found since."""
        most = min(end // self._size, self.num_prompt_blocks(forced))
        keys = (record.keys or [])[self._pages.shared.count(record.slot) : most]
        if keys:
            self._pages.publish(record.slot, keys)
        return keys

    def leave(self, record: Record, tokens: I32, depths: I32, *, ended: bool) -> None:
        """Publish the pages of a decoding request that ends, or is preempted, after these
        outputs [n], read at `depths`. Outputs were committed when they came out."""
        request, slot, size = record.request, record.slot, self._size
        have, length = self._pages.shared.count(slot), len(request.prompt) + len(tokens) - 1
        length -= self._trailing
        if not len(tokens) or length // size <= have:
            return
        if record.chains or not self._outputs[request.loops - 1]:
            return
        start = have * size
        known = np.concatenate((request.prompt, tokens[:-1].astype(np.int64)))[start:length]
        at = self._output_depths(request, depths)[start:length]
        early = (at != request.loops).nonzero()[0]
        whole = int(early[0]) // size if len(early) else len(known) // size
        if ended or self._hides:
            known = known[: whole * size]
        root = self._root(request) if not have else self._last_key(record, have)
        keys = chain_keys(root, known, at[: len(known)], size, request.loops)
        self._pages.publish(slot, keys[:whole])
        self._pages.publish(slot, keys[whole:], lasting=False)

    def _last_key(self, record: Record, have: int) -> bytes:
        return self._pages.shared.key(record.slot, have - 1)

    def _most(self, record: Record, forced: Forced) -> int:
        """Positions that may come from the cache."""
        most, end = len(forced) - 1, forced.border
        if forced.rules.drops or record.chains:
            # The prompt's last position is computed: planes are dropped behind it, and the next
            # one reads its state.
            most = min(most, end - 1)
        elif record.request.kind == "score":
            most = min(most, end - self._reads_coda)
        elif not self._outputs[forced.loops - 1]:
            most = min(most, end)
        if forced.target is not None:
            wanted = (forced.target >= 0).nonzero()[0]
            most = min(most, int(wanted[0])) if len(wanted) else most
        return max(most, 0)

    def _depths(self, forced: Forced, depths: I32) -> I64:
        """KV depths of a replay's positions [F]."""
        at = np.full(len(forced), forced.loops, np.int64)
        if not self.keeps_early:
            at[forced.border :] = depths[1 : len(forced) - forced.border + 1]
        if self._reads_coda and forced.border:
            at[forced.border - 1] = depths[0]
        return at

    def _output_depths(self, request: EngineRequest, depths: I32) -> I64:
        """KV depths of prompt and outputs but the last [n]."""
        border = len(request.prompt)
        at = np.full(border + len(depths) - 1, request.loops, np.int64)
        if not self.keeps_early:
            at[border:] = depths[1:]
        if self._reads_coda:
            at[border - 1] = depths[0]
        return at

    def _root(self, request: EngineRequest) -> bytes:
        """What every key of a request depends on beside its tokens and their depths."""
        if not (request.options or request.tables):
            plain = (request.loops, request.state_seed)
            if plain not in self._roots:
                if len(self._roots) == _MOST_ROOTS:
                    self._roots.clear()
                self._roots[plain] = self._new_root(request)
            return self._roots[plain]
        return self._new_root(request)

    def _new_root(self, request: EngineRequest) -> bytes:
        tables = {name: file.digest for name, file in request.tables.items()}
        parts = (
            *self._salt,
            request.loops,
            request.state_seed,
            sorted(request.options.items()),
            sorted(tables.items()),
        )
        return blake2b(repr(parts).encode(), digest_size=16).digest()
