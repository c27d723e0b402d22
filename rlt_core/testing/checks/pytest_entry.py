"""The kit as one parametrized pytest test. Imports pytest only when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlt_core.plugins.registry import Registry


def conformance(
    plugin: str,
    *,
    expected_failures: Mapping[str, str] | None = None,
    weights: str | Path | None = None,
    registry: Registry | None = None,
) -> Any:
    """A pytest test of every check that `plugin` (its name or distribution) calls for::

        from rlt_core.testing import conformance

        test_conforms = conformance("rlt-mymodel")

    expected_failures: check name, or name[part], -> the reason, in writing. The table is strict:
    an unknown name or an empty reason is an error at once, and a check that passes all the same
    fails. weights: a checkpoint folder, for the model that reads it; other models have random
    weights by their `example`. registry: default what is installed.

    Raises UnknownNameError, PluginError, OptionError or CheckpointError when it is called.
    """
    import pytest

    from rlt_core.testing.checks.kit import Kit

    kit = Kit(plugin, registry=registry, weights=weights, expected_failures=expected_failures)

    @pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in kit.cases])
    def test_conforms(case: Any) -> None:
        """Guards what the plugin declares; each case's own docstring says what it guards."""
        outcome = kit.run(case)
        if outcome.state == "skipped":
            pytest.skip(outcome.reason)
        if outcome.state == "expected":
            pytest.xfail(outcome.reason)
        if outcome.state == "failed":
            pytest.fail("\n".join(outcome.lines), pytrace=False)

    return test_conforms
