"""The model on which layouts, policies, strategies and prompt modes are checked: a tiny one."""

from __future__ import annotations

from functools import cached_property, partial
from importlib import import_module
from typing import Any

import torch

from rlt_core.contract.errors import ConflictError
from rlt_core.plugins.discovery import Candidate, load_plugin
from rlt_core.plugins.plan import Choice, Plan, Source
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve
from rlt_core.testing.checks.check import CannotRun
from rlt_core.testing.tiny import PLAIN_SPEC, plain_example, read_config
from rlt_core.testing.tiny_model import TinyModel, draw_weights

_SEED = 4


class StandIn:
    """Three loops, three tracks, every signal; tokens vary under its weights."""

    def __init__(self, registry: Registry) -> None:
        self.registry = _with_tiny(registry)
        self.shape = read_config(plain_example(), "the kit's own model", frozenset())

    @cached_property
    def model(self) -> TinyModel:
        """The float32 model."""
        model = TinyModel(self.shape, device=torch.device("cpu"), dtype=torch.float32)
        draw_weights(model, _SEED)
        return model

    def plan(self, **options: Any) -> Plan:
        """The plan of a choice with this model. Raises CannotRun where resolve refuses it."""
        try:
            choice = Choice(model=PLAIN_SPEC.id, **options)
            return resolve(choice, self.registry, shape=self.shape)
        except ConflictError as error:
            raise CannotRun(f"the kit's own model cannot serve it: {error.conflicts[0]}") from None


def _with_tiny(registry: Registry) -> Registry:
    if any(spec.id == PLAIN_SPEC.id for spec in registry.specs):
        return registry
    source = Source(plugin="tiny", distribution="rlt-core (testing)", version="")
    load = partial(import_module, "rlt_core.testing.tiny_plugin")
    tiny = load_plugin(Candidate(source=source, load=load), frozenset())
    return Registry((*registry.plugins, tiny))
