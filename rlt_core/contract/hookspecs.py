"""The hooks. pluggy project name `rlt`, entry-point group `rlt`.

They are called once per process, at discovery or engine build, and never per tick: a hook call
costs 4 to 11 microseconds and cannot be captured in a graph. Modules that implement them must not
import torch; they return specs whose factories are strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

from rlt_core.contract.specs import (
    AttentionSpec,
    ExitPolicySpec,
    KVLayoutSpec,
    ModelSpec,
    OpSpec,
    PromptModeSpec,
    StrategySpec,
)

if TYPE_CHECKING:
    import typer

PROJECT = "rlt"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """All hooks of rlt."""

    @hookspec
    def rlt_models(self) -> Sequence[ModelSpec]:
        """Declare looped models.

        When: once, at discovery. Return: a list of ModelSpec. Ordering: none; an id or
        model_type that two plugins declare is an error that names both distributions.

        Example::

            @hookimpl
            def rlt_models():
                return [ModelSpec(id="counter", ...)]
        """
        raise NotImplementedError

    @hookspec
    def rlt_kv_layouts(self) -> Sequence[KVLayoutSpec]:
        """Declare KV layouts: which plane a loop writes and reads, and what an exit fills in.

        When: once, at discovery. Return: a list of KVLayoutSpec; each factory gives an object
        with `tables(loops) -> LayoutTables`. The core declares `last_exited`, `shared` and
        `last_step` through this hook.

        Example::

            @hookimpl
            def rlt_kv_layouts():
                return [KVLayoutSpec(id="mine", factory="rlt_mine:Layout", ...)]
        """
        raise NotImplementedError

    @hookspec
    def rlt_exit_policies(self) -> Sequence[ExitPolicySpec]:
        """Declare exit policies: when a row leaves.

        When: once, at discovery. Return: a list of ExitPolicySpec; each factory gives an object
        with `state(...)` and `decide(...)`. `needs` names the signals that decide reads.

        Example::

            @hookimpl
            def rlt_exit_policies():
                return [ExitPolicySpec(id="mine", factory="rlt_mine:Mine", needs=...)]
        """
        raise NotImplementedError

    @hookspec
    def rlt_strategies(self) -> Sequence[StrategySpec]:
        """Declare scheduling strategies: a host half and one of the device entry rules.

        When: once, at discovery. Return: a list of StrategySpec; each factory gives an object
        with `plan(view) -> StrategyPlan`. The core declares `cohort` and `refill`.

        Example::

            @hookimpl
            def rlt_strategies():
                return [StrategySpec(id="mine", entry=Entry.ON_LEAVE, ...)]
        """
        raise NotImplementedError

    @hookspec
    def rlt_prompt_modes(self) -> Sequence[PromptModeSpec]:
        """Declare prompt modes: the order in which the cells of prompts run.

        When: once, at discovery. Return: a list of PromptModeSpec. The core declares `chunked`
        and `wavefront`.

        Example::

            @hookimpl
            def rlt_prompt_modes():
                return [PromptModeSpec(id="mine", factory="rlt_mine:Mode", ...)]
        """
        raise NotImplementedError

    @hookspec
    def rlt_attention_backends(self) -> Sequence[AttentionSpec]:
        """Declare attention backends over the paged pool.

        When: once, at discovery. Return: a list of AttentionSpec; each factory gives a callable
        that fits protocols.Attention. Device, dtypes, head sizes and page sizes are limits that
        are checked before anything is built. The core declares `torch`.

        Example::

            @hookimpl
            def rlt_attention_backends():
                return [AttentionSpec(id="mine", factory="rlt_mine:attend", ...)]
        """
        raise NotImplementedError

    @hookspec
    def rlt_ops(self) -> Sequence[OpSpec]:
        """Declare candidates for operators (`linear`, `rms_norm`, ...).

        When: once, at discovery. Return: a list of OpSpec; `factory` names the function itself,
        with the signature in protocols.Operators. An operator that claims `exact` is tested at
        start-up and refused where its rows' bits change with the row count.

        Example::

            @hookimpl
            def rlt_ops():
                return [OpSpec(id="mine.linear", op="linear", exact=True, ...)]
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def rlt_choose_op(
        self, op: str, candidates: Sequence[OpSpec], device: str, dtype: str, exact: bool
    ) -> OpSpec | None:
        """Choose among the candidates for one operator.

        When: once per operator, at engine build. Arguments: `candidates` already fit device,
        dtype and exactness. Return: one of them, or None to leave it to the next. Ordering: the
        core's own answer (the highest priority) is `trylast`.

        Example::

            @hookimpl
            def rlt_choose_op(op, candidates):
                return next((c for c in candidates if c.id == "mine.linear"), None)
        """
        raise NotImplementedError

    @hookspec
    def rlt_add_commands(self, app: typer.Typer) -> None:
        """Add sub-commands to the `rlt` command line by changing `app`.

        When: once, when the command line starts. Return: nothing. Heavy imports belong inside
        the commands, so that `rlt --help` stays quick.

        Example::

            @hookimpl
            def rlt_add_commands(app):
                app.command("mine")(mine)
        """
        raise NotImplementedError
