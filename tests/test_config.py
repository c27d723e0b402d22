"""ConfigReader: types, ranges and messages, apart from any model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlt_core.contract.config import ConfigReader
from rlt_core.contract.errors import ConfigError


def reader(*ignore: str, **fields: Any) -> ConfigReader:
    """A reader over these fields."""
    return ConfigReader(fields, "folder/config.json", frozenset(ignore))


def test_values_come_back() -> None:
    """Each getter gives its own type; whole numbers count as numbers."""
    config = reader(a=3, b=1, c=True, d="x", e=[1], f=None)
    assert config.integer("a") == 3
    value = config.number("b")
    assert (value, type(value)) == (1.0, float)
    assert config.flag("c") is True
    assert config.text("d") == "x"
    assert config.sequence("e") == [1]
    assert config.raw("f") is None
    assert config.integer("none", default=5) == config.integer("f", default=5) == 5
    assert "a" in config
    assert "none" not in config
    config.finish()


Get = Callable[[ConfigReader], object]
GETTERS: list[tuple[Get, list[object]]] = [
    (lambda c: c.integer("x"), [True, 1.0, "1", None, [1], 0]),
    (lambda c: c.number("x"), [True, "1", float("nan"), float("inf"), None]),
    (lambda c: c.flag("x"), [0, 1, "true", None]),
    (lambda c: c.text("x"), [1, None, ["a"]]),
    (lambda c: c.sequence("x"), ["a", None, {}]),
    (lambda c: c.integer("x", minimum=2, maximum=4), [1, 5]),
    (lambda c: c.number("x", minimum=0.0, maximum=1.0), [-0.1, 2]),
    (lambda c: c.constant("x", False, None), [0, "", True]),
]


@pytest.mark.parametrize(
    ("get", "value"), [(get, bad) for get, values in GETTERS for bad in values]
)
def test_wrong_type_or_range(get: Get, value: object) -> None:
    """true is no number, 0 is no false, NaN is no number; the error names file and field."""
    with pytest.raises(ConfigError) as caught:
        get(reader(x=value))
    assert caught.value.field == "x"
    assert str(caught.value).startswith("folder/config.json: field 'x' ")
    assert len(str(caught.value)) < 250


def test_missing_is_named() -> None:
    """No default means that the file must say it."""
    with pytest.raises(ConfigError, match="'x' is missing"):
        reader().integer("x")
    with pytest.raises(ConfigError, match="'x' is missing"):
        reader("x", x=3).integer("x")
    with pytest.raises(ConfigError, match="'x' is missing"):
        reader().constant("x", "silu")


def test_finish_refuses_what_nobody_read() -> None:
    """An unread field with a value that is not neutral may change the mathematics."""
    config = reader(known=1, odd=2, use_cache=True, off=False)
    config.integer("known")
    with pytest.raises(ConfigError, match="--ignore-config odd") as caught:
        config.finish()
    assert caught.value.field == "odd"
    past = reader("odd", known=1, odd=2)
    past.integer("known")
    past.finish()


def test_long_values_are_cut() -> None:
    """A list of a thousand entries must not fill the screen."""
    with pytest.raises(ConfigError) as caught:
        reader(odd=[{"a": 1}] * 1000).finish()
    assert len(str(caught.value)) < 300


def test_token_ids() -> None:
    """None, one, or several; twice the same counts once."""
    assert reader().token_ids("eos", 10) == ()
    assert reader(eos=None).token_ids("eos", 10) == ()
    assert reader(eos=3).token_ids("eos", 10) == (3,)
    assert reader(eos=[3, 2, 3]).token_ids("eos", 10) == (3, 2)
    for bad in (10, -1, True, "3", [3, 10], [None]):
        with pytest.raises(ConfigError):
            reader(eos=bad).token_ids("eos", 10)


def test_nested_rope_with_an_unknown_part() -> None:
    """A scaling factor without a type must not be dropped."""
    with pytest.raises(ConfigError, match="factor"):
        reader(rope_parameters={"rope_theta": 1e4, "factor": 8.0}).rope_theta()
    with pytest.raises(ConfigError, match="partial_rotary_factor"):
        reader(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}).rope_theta()
    with pytest.raises(ConfigError, match="not an object"):
        reader(rope_theta=1e4, rope_scaling=2.0).rope_theta()
    whole = {"rope_theta": 1e4, "partial_rotary_factor": 1.0}
    assert reader(rope_parameters=whole).rope_theta() == 1e4


def test_importing_it_needs_no_torch() -> None:
    """Readers run before torch is imported."""
    root = str(Path(__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); import rlt_core.contract.config; "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
