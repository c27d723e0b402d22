"""Checks of words that a model promises beside row independence and graphs."""

from __future__ import annotations

import torch

from rlt_core.contract.capabilities import Word
from rlt_core.contract.specs import STATE_SEED
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.model import METHODS_HOLD
from rlt_core.testing.checks.recorder import PREVIOUS, Recorder
from rlt_core.testing.checks.rows import check_rows_depths
from rlt_core.testing.checks.subjects import ModelSubject

_RUNS = (*METHODS_HOLD, check_rows_depths)


@check("model", word=Word.LOGITS, after=_RUNS)
def check_coda_without_store(model: ModelSubject) -> None:
    """coda(store=False) gives what storing gives, and leaves every bit of the pool alone.

    If this fails: pass `store` on to every ctx.attend of the coda.
    """
    rig = model.rig
    last = rig.text.states[-1]
    kept = rig.pool.storage.clone()
    with Recorder(rig) as recorder:
        state = rig.coda(last, store=False)
    stored = [call for call in recorder.take() if call.store]
    expect(not stored, "coda(store=False) to attend with store=False", f"{len(stored)} stores")
    same = torch.equal(rig.pool.storage.nan_to_num(), kept.nan_to_num())
    expect(same, "the pool's bits to stay", "some changed")
    expect(torch.equal(state, rig.text.coda), "the state that storing gives", "another one")


@check("model", word=Word.KEYED_STATE, after=_RUNS)
def check_start_keyed(model: ModelSubject) -> None:
    """The start state changes with the state seed and with the position, and with nothing else.

    If this fails: draw it from ctx.random_bits(purpose, count), which is keyed by both; torch's
    own generators follow the batch.
    """
    rig = model.rig
    token = rig.tokens[:1].expand(len(rig.all)).clone()
    zero, one = rig.prelude(tokens=token), rig.prelude(tokens=token, state_seed=1)
    again = rig.prelude(tokens=token)
    expect(torch.equal(zero, again), "the same start for the same seed", "another one")
    changed = (zero != one).any(1)
    told = f"{int((~changed).sum())} rows keep theirs"
    expect(bool(changed.all()), "another start in every row with another state seed", told)
    width = _keyed_columns(zero, one)
    apart = len({tuple(row) for row in zero[:32, width].tolist()})
    expect(apart == 32, "another start at each of 32 positions", f"{apart} different ones")


@check("model", after=_RUNS)
def check_options_read(model: ModelSubject) -> None:
    """Every option that the model declares is read, and `previous` where one chains.

    If this fails: read it with ctx.option(name) or ctx.option_table(name), or take it out of
    ModelSpec.options; `state_seed` alone is read by the core.
    """
    rig, options = model.rig, model.spec.options
    with Recorder(rig) as recorder:
        state = rig.prelude()
        after = rig.loop(state)
        rig.signals(after, state)
        rig.head(rig.coda(after))
    wanted = {option.name for option in options if not option.chains} - {STATE_SEED}
    wanted |= {PREVIOUS for option in options if option.chains}
    unread = ", ".join(sorted(wanted - recorder.options))
    expect(not unread, "every declared option to be read", f"{unread} never is")


def _keyed_columns(zero: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """The columns of the state that follow the seed."""
    return (zero != one).any(0)
