"""The tiny model as a plugin: tests ask for it, no entry point names it."""

from __future__ import annotations

from rlt_core.contract.hookspecs import hookimpl
from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.discovery import Candidate, installed
from rlt_core.plugins.plan import Source
from rlt_core.plugins.registry import Registry, build_registry
from rlt_core.testing.tiny import SPEC


@hookimpl
def rlt_models() -> list[ModelSpec]:
    return [SPEC]


def registry_with_tiny() -> Registry:
    """What is installed, and the tiny model."""
    source = Source(plugin="tiny", distribution="rlt-core (testing)", version="")
    module = __import__(__name__, fromlist=["rlt_models"])
    return build_registry((*installed(), Candidate(source=source, load=lambda: module)))
