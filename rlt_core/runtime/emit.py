"""The end of a tick: head, sampling, stop and length, and the next token's entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlt_core.contract.protocols import LoopedModel
from rlt_core.contract.steps import Drawn
from rlt_core.runtime.context import Launch
from rlt_core.runtime.logit_parts import logit_parts
from rlt_core.runtime.residents import Needs
from rlt_core.runtime.sampling import (
    Sampled,
    SampleRows,
    joined,
    sample_full,
    sample_plain,
    score_tokens,
)
from rlt_core.runtime.slots import DONE, READY, Slots
from rlt_core.runtime.tick_rows import TickTensors

RUNNING, STOP, LENGTH, ERROR = 0, 1, 2, 3
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(slots=True, kw_only=True)
class Emitted:
    """Events of a tick as device tensors; E = leaving places + emitting prompt rows.

    score_*: for prompt rows with a target, in the order of TickTensors.score.
    """

    slot: Tensor
    depth: Tensor
    finish: Tensor
    sampled: Sampled
    score_depth: Tensor | None
    scored: Sampled | None
    logits: Tensor | None
    score_logits: Tensor | None
    counts: Tensor
    drafts: Tensor | None = None  # CheckingEmitter's


class Emitter:
    """Head and sampling for the rows that need logits, then the slots' next tokens."""

    def __init__(self, slots: Slots, *, keep_logits: bool) -> None:
        self.slots, self.keep_logits = slots, keep_logits
        self.needs = Needs()  # what the residents ask of sampling, set before each tick
        self.drafts: Tensor | None = None
        # What a plugin's steps draw plain tokens with: (logits, slot, position) as in `sample`.
        self.draw: Callable[[Tensor, Tensor, Tensor], Drawn] | None = None

    def __call__(
        self,
        model: LoopedModel,
        state: Tensor,
        leave_slot: Tensor,
        home: Tensor,
        position: Tensor,
        t: TickTensors,
        ctx: Launch,
    ) -> Emitted:
        """state [L + F, W] after the coda; leave_slot [L] (the sentinel for an empty place);
        home and position [L + F]."""
        s, num_leave = self.slots, leave_slot.shape[0]
        leaving = torch.arange(num_leave, device=s.device)
        emit = torch.cat((leaving, t.emit + num_leave))
        slot = torch.cat((leave_slot, t.slot[t.finish][t.emit]))
        logits = model.head(state[emit], ctx)
        at = position[emit] + 1
        sampled = self.sample(logits, slot, at)
        finish = self._advance(slot, at, sampled)
        self._resume(t)
        score = t.score + num_leave
        scored, score_logits = None, None
        if t.score.shape[0]:
            scored, score_logits = self._score(model, state[score], t, ctx)
        return Emitted(
            slot=torch.where(slot == s.sentinel, -1, slot),
            depth=s.read_depth[home[emit]],
            finish=finish,
            sampled=sampled,
            score_depth=None if scored is None else s.read_depth[home[score]],
            scored=scored,
            logits=logits if self.keep_logits else None,
            score_logits=score_logits,
            counts=slot,
            drafts=self.drafts,
        )

    def nothing(self) -> Emitted:
        """The events of a tick in which no row can leave."""
        s = self.slots
        none = torch.zeros(0, dtype=torch.int64, device=s.device)
        drawn = Drawn(token=none, logprob=none.float(), rank=none, bad=none.bool())
        sampled = _sampled(drawn, min(self.needs.num_top, s.vocab_size))
        return Emitted(
            slot=none,
            depth=none,
            finish=none,
            sampled=sampled,
            score_depth=None,
            scored=None,
            logits=torch.zeros(0, s.vocab_size, device=s.device) if self.keep_logits else None,
            score_logits=None,
            counts=none,
            drafts=None if self.drafts is None else self.drafts[:, :0],
        )

    def missing(self, slot: Tensor) -> Tensor | None:
        """Which of these slots [R] lack the mask of their next output: bool [R]; None where no
        resident has masks."""
        s = self.slots
        if not self.needs.masks or s.masks is None:
            return None
        return s.masks.missing(slot, s.num_out[slot])

    def sample(
        self, logits: Tensor, slot: Tensor, position: Tensor, *, guess: bool = False
    ) -> Sampled:
        """Tokens for logits float32 [E, V] of slots [E], at positions [E] of the new tokens. A
        guess is drawn without penalties and masks."""
        if not self.needs.full:
            if self.draw is not None and not self.needs.num_top:
                return _sampled(self.draw(logits, slot, position), 0)
            return sample_plain(logits, self.needs.num_top)
        s = self.slots
        penalties = {name: s.float_params[name][slot] for name in _PENALTIES}
        filters = self.needs.filters
        rows = SampleRows(
            logits=logits,
            position=position,
            seed=s.seed[slot],
            temperature=s.float_params["temperature"][slot],
            top_p=s.float_params["top_p"][slot] if filters else None,
            min_p=s.float_params["min_p"][slot] if filters else None,
            top_k=s.int_params["top_k"][slot] if filters else None,
            **penalties,
            token_counts=None if s.counts is None or guess else s.counts[slot],
            in_prompt=None if s.in_prompt is None or guess else s.in_prompt[slot],
            bias_ids=None if s.bias_ids is None else s.bias_ids[slot],
            bias_values=None if s.bias_values is None else s.bias_values[slot],
            allowed=None if guess else self._allowed(slot),
        )
        return sample_full(rows, self.needs.num_top)

    def _allowed(self, slot: Tensor) -> Tensor | None:
        """What the masks of these slots [E] let them draw: bool [E, V]; None without masks."""
        masks = self.slots.masks
        return masks.allowed(slot) if self.needs.masks and masks is not None else None

    def _advance(self, slot: Tensor, position: Tensor, sampled: Sampled) -> Tensor:
        """Finish codes [E]; slots that go on become READY at `position` with the new token."""
        s, token = self.slots, sampled.token
        num_out = s.num_out[slot] + 1
        stop = (s.stop_ids[slot] == token[:, None]).any(1)
        spent = num_out >= s.int_params["max_tokens"][slot]
        full = position + 1 >= s.int_params["max_position"][slot]
        finish = torch.where(stop, STOP, torch.where(spent | full, LENGTH, RUNNING))
        finish = torch.where(sampled.bad, ERROR, finish)
        valid = slot != s.sentinel
        phase = self._phase(slot, position, token, finish)
        s.phase[slot] = torch.where(valid, phase, 0)
        s.token[slot], s.num_out[slot] = token, num_out
        # Empty places are the sentinel slot's: it stays at 0, or it would leave every table.
        s.position[slot] = torch.where(valid, position, 0)
        self.count(slot, sampled)
        return finish

    def _phase(self, slot: Tensor, position: Tensor, token: Tensor, finish: Tensor) -> Tensor:
        """Phases of slots [E] whose next token, at `position`, is `token`."""
        return torch.where(finish == RUNNING, READY, DONE)

    def count(self, slot: Tensor, sampled: Sampled) -> None:
        """Note the tokens for the penalties, where anybody has some."""
        counts = self.slots.counts
        if counts is not None:
            ones = ((slot != self.slots.sentinel) & ~sampled.bad).to(counts.dtype)
            counts.index_put_((slot, sampled.token.clamp(min=0)), ones, accumulate=True)

    def _resume(self, t: TickTensors) -> None:
        """Slots whose next token is known already (replay): no sampling, no event."""
        s = self.slots
        slot = t.slot[t.resume]
        s.phase.index_fill_(0, slot, READY)
        s.token[slot] = t.known_next[t.resume]
        s.position[slot] = t.position[t.resume] + 1

    def _score(
        self, model: LoopedModel, state: Tensor, t: TickTensors, ctx: Launch
    ) -> tuple[Sampled, Tensor | None]:
        """The targets of the rows with one, and their logits [X, V] where those are kept."""
        targets = t.target[t.finish][t.score]
        logits, parts = list[Tensor](), list[Sampled]()
        for rows in logit_parts(len(targets), self.slots.vocab_size):
            found = model.head(state[rows], ctx)
            parts.append(score_tokens(found, targets[rows], self.needs.num_top))
            if self.keep_logits:
                logits.append(found)
        return joined(parts), torch.cat(logits) if self.keep_logits else None


def _sampled(drawn: Drawn, num_top: int) -> Sampled:
    """Drawn, where no row was asked for its likeliest tokens or there is none."""
    top = torch.zeros(len(drawn.token), num_top, device=drawn.token.device)
    return Sampled(
        token=drawn.token,
        logprob=drawn.logprob,
        rank=drawn.rank,
        top_ids=top.long(),
        top_logprobs=top,
        bad=drawn.bad,
    )
