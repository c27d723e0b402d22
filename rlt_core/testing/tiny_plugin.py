"""The tiny models as a plugin: tests ask for it, no entry point names it."""

from __future__ import annotations

from rlt_core.contract.hookspecs import hookimpl
from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.discovery import Candidate, installed
from rlt_core.plugins.plan import Source
from rlt_core.plugins.registry import Registry, build_registry
from rlt_core.testing.tiny import SPECS


@hookimpl
def rlt_models() -> list[ModelSpec]:
    return [*SPECS.values()]


def registry_with_tiny(*others: Candidate) -> Registry:
    """What is installed, the tiny models, and `others`."""
    source = Source(plugin="tiny", distribution="rlt-core (testing)", version="")
    module = __import__(__name__, fromlist=["rlt_models"])
    tiny = Candidate(source=source, load=lambda: module)
    return build_registry((*installed(), tiny, *others))
