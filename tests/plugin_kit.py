"""Plugins made in a test: a module with hooks, a source, and a registry of them with the core."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlt_core.contract import AttentionSpec, ModelShape, ModelSpec, TrackSpec, Word, hookimpl
from rlt_core.contract.errors import ConflictError
from rlt_core.plugins.discovery import Candidate, core_candidate
from rlt_core.plugins.plan import Choice, Plan, Source
from rlt_core.plugins.registry import Registry, build_registry
from rlt_core.plugins.resolve import resolve

ALL = (Word.GATE, Word.STATE, Word.LOGITS, Word.ROW_COMPACTION, Word.GRAPH_SAFE)
CHOICE = Choice(model="counter")


def candidate(name: str, version: str = "1.0", **hooks: Callable[..., object]) -> Candidate:
    """A plugin `name` from the distribution rlt-NAME with the given hook functions."""
    module = types.ModuleType(f"rlt_{name}")
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return given(name, lambda: module, version)


def given(name: str, load: Callable[[], object], version: str = "1.0") -> Candidate:
    """A plugin whose import is `load`."""
    source = Source(plugin=name, distribution=f"rlt-{name}", version=version)
    return Candidate(source=source, load=load)


def registry_of(*candidates: Candidate, blocked: frozenset[str] = frozenset()) -> Registry:
    """The core's plugin and the given ones."""
    return build_registry([core_candidate(), *candidates], blocked)


def model(name: str = "counter", *words: str, **fields: Any) -> ModelSpec:
    """A model spec that provides `words`."""
    plain = ModelSpec(
        id=name,
        summary="a model of a test",
        model_types=(name,),
        architectures=(f"{name.title()}ForCausalLM",),
        reader="rlt_counter:read",
        factory="rlt_counter:Model",
        provides=frozenset(words),
    )
    return replace(plain, **fields)


def shape(**fields: Any) -> ModelShape:
    """Four loops, one per-depth track of head size 16, float32."""
    track = TrackSpec(name="core", num_layers=2, num_kv_heads=2, head_dim=16, per_depth=True)
    plain = ModelShape(
        loops=4,
        max_loops=4,
        vocab_size=32,
        state_width=8,
        max_positions=64,
        dtype="float32",
        tracks=(track,),
        eos_token_ids=(0,),
        config=None,
    )
    return replace(plain, **fields)


def counter_registry(*words: str, **hooks: Any) -> Registry:
    """The core and one plugin with the model `counter`, which provides `words`, and more hooks."""
    return registry_of(candidate("counter", rlt_models=lambda: [model("counter", *words)], **hooks))


def resolve_counter(registry: Registry | None = None, **options: Any) -> Plan:
    """The plan of a choice of `counter`; `shape` may be among the options."""
    wanted = options.pop("shape", shape())
    return resolve(replace(CHOICE, **options), registry or counter_registry(*ALL), shape=wanted)


def conflict_of(registry: Registry | None = None, **options: Any) -> ConflictError:
    """The refusal of that choice."""
    with pytest.raises(ConflictError) as caught:
        resolve_counter(registry, **options)
    return caught.value


def attention(name: str, **fields: Any) -> AttentionSpec:
    """A backend of a test, of high priority and without limits."""
    plain = AttentionSpec(
        id=name,
        summary="",
        factory="a:B",
        devices=("cpu", "cuda"),
        dtypes=("float32", "bfloat16"),
        priority=10,
        provides=frozenset({Word.EXACT, Word.SPLIT_PLANES, Word.STORE_FALSE}),
    )
    return replace(plain, **fields)
