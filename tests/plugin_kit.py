"""Plugins made in a test: a module with hooks, a source, and a registry of them with the core."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlt_core.contract import ModelShape, ModelSpec, TrackSpec, hookimpl
from rlt_core.plugins.discovery import Candidate, core_candidate
from rlt_core.plugins.plan import Source
from rlt_core.plugins.registry import Registry, build_registry


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
