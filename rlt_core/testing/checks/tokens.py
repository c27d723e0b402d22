"""Checks of a model in whole engines: the same tokens, whatever the schedule."""

from __future__ import annotations

from collections.abc import Iterator

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import ConflictError
from rlt_core.contract.specs import ExitPolicySpec, KVLayoutSpec
from rlt_core.plugins.plan import Plan
from rlt_core.schedule.request import EngineRequest
from rlt_core.testing.checks.check import CannotRun, check, expect
from rlt_core.testing.checks.graph import check_operator_count
from rlt_core.testing.checks.policy_inputs import default_of
from rlt_core.testing.checks.promises import (
    check_coda_without_store,
    check_options_read,
    check_start_keyed,
)
from rlt_core.testing.checks.rows import check_rows_depths
from rlt_core.testing.checks.subjects import SEED, ModelSubject
from rlt_core.testing.checks.trial import MAX_LEN, Answer, Trial, expect_same, requests_of
from rlt_core.testing.checks.weights import check_weight_names, check_weights_all_read

# An engine is worth running when every part holds.
_PARTS = (
    *(check_rows_depths, check_operator_count, check_coda_without_store, check_start_keyed),
    *(check_options_read, check_weights_all_read, check_weight_names),
)
_LENGTHS = (37, 33, 1, 5)  # more requests than slots; the first prompts are three chunks
_SHORT = (4, 2)
_NUM_OUTPUTS = 4
_CHUNK = 16


@check("model", after=_PARTS)
def check_prompt_chunks(model: ModelSubject) -> None:
    """A prompt in chunks gives what it gives whole: tokens, depths and the logits' bits.

    If this fails: something depends on which positions are in a launch together; a row may look
    at other positions through ctx.attend alone.
    """
    plan = model.plan(exit_policy="fixed")
    requests = requests_of(plan, _LENGTHS[:1], _NUM_OUTPUTS, SEED)
    whole = Trial(plan=plan, model=model.model).run(requests)
    chunked = Trial(plan=plan, model=model.model, chunk_size=_CHUNK).run(requests)
    expect_same(whole, chunked, "a prompt in chunks to give what it gives whole", "in chunks")


@check("model", after=(check_prompt_chunks,))
def check_requests_together(model: ModelSubject) -> None:
    """Requests together, with room for all and in a pool for one, get what each gets alone.

    If this fails: the model keeps something per position or token outside its state; two requests
    have the same positions.
    """
    plan = model.plan(exit_policy="fixed")
    requests = requests_of(plan, _LENGTHS, _NUM_OUTPUTS, SEED)
    alone = _alone_and_together(model, plan, requests, _CHUNK)
    small = Trial(plan=plan, model=model.model, chunk_size=_CHUNK, smallest=True)
    told = "a request in a pool for one, where others wait and are preempted, to get the same"
    expect_same(alone, small.run(requests), told, "there")


@check("model", word=Word.LOOPS_OVERRIDE, after=(check_requests_together,))
def check_other_loops(model: ModelSubject) -> None:
    """A request may ask for one loop, or for as many as max_loops, and is read out there.

    If this fails: use ctx.depth and not the configuration's loops; lower max_loops in the shape
    if the mathematics ends there.
    """
    shape = model.shape
    for loops in sorted({1, min(shape.max_loops, 2 * shape.loops)} - {shape.loops}):
        plan = model.plan(exit_policy="fixed", max_depth=max(loops, shape.loops))
        requests = requests_of(plan, _SHORT, _NUM_OUTPUTS, SEED, loops=loops)
        for answer in Trial(plan=plan, model=model.model).run(requests).values():
            expect(not answer.error, f"{loops} loops to run", answer.error)
            right = answer.depths == [loops] * _NUM_OUTPUTS
            expect(right, f"{loops} loops for every token", answer.depths)


@check("model", after=(check_requests_together, check_other_loops))
def check_early_exits(model: ModelSubject) -> None:
    """With every layout and exit mode that resolve allows, rows may leave at any depth.

    If this fails: coda and head get states of any depth (ctx.depth says which), and a row that
    left is not looped again in mode skip.
    """
    plans = list(_plans_of_exits(model))
    if not plans:
        raise CannotRun("no layout lets its rows leave early")
    for plan in plans:
        requests = requests_of(plan, _SHORT, _NUM_OUTPUTS, SEED)
        _alone_and_together(model, plan, requests)


@check("model", after=(check_early_exits,))
def check_own_policies(model: ModelSubject) -> None:
    """Every exit policy that resolve allows runs on the model, the same alone and together.

    If this fails: the policy reads a signal that the model promises; see check_signals_declared.
    """
    for policy in model.bench.registry.all(ExitPolicySpec):
        plan = _plan(model, exit_policy=policy.id)
        if plan is None or any(param.kind == "depths" for param in policy.params):
            continue
        given = {p.name: default_of(p) for p in policy.params}
        requests = requests_of(plan, _SHORT, 3, SEED, exit_params=given)
        _alone_and_together(model, plan, requests)


def _alone_and_together(
    model: ModelSubject, plan: Plan, requests: list[EngineRequest], chunk: int = MAX_LEN
) -> dict[int, Answer]:
    alone = Trial(plan=plan, model=model.model).run_alone(requests)
    roomy = Trial(plan=plan, model=model.model, chunk_size=chunk)
    together = roomy.run(requests)
    how = f"{plan.layout.id}, mode {plan.exit_mode}, policy {plan.policy.id}"
    expect_same(alone, together, f"requests together to get what each gets alone ({how})", "there")
    return alone


def _plans_of_exits(model: ModelSubject) -> Iterator[Plan]:
    for layout in model.bench.registry.all(KVLayoutSpec):
        for mode in ("skip", "full"):
            plan = _plan(model, kv_layout=layout.id, exit_mode=mode, exit_policy="trace")
            if plan is not None:
                yield plan


def _plan(model: ModelSubject, **options: object) -> Plan | None:
    try:
        return model.plan(**options)
    except ConflictError:
        return None
