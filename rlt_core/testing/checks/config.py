"""Checks of a model's reader: what it makes of config.json, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rlt_core.contract.config import HARMLESS
from rlt_core.contract.errors import ConfigError
from rlt_core.contract.specs import ModelShape
from rlt_core.plugins.draft import DTYPES
from rlt_core.testing.checks.check import check, expect, one_line
from rlt_core.testing.checks.plugin import check_factories_load, heavy_after
from rlt_core.testing.checks.subjects import ModelSubject

UNKNOWN = "rlt_check_unknown_field"


@check("model", after=(check_factories_load,))
def check_config_reads(model: ModelSubject) -> None:
    """The reader takes the example (or the checkpoint's config.json) and gives a usable shape.

    If this fails: the reader is `(config: dict, path: str, ignore: frozenset) -> ModelShape`;
    every size is at least 1, ids lie in the vocabulary, a track has a name of its own.
    """
    shape = model.shape
    expect(isinstance(shape, ModelShape), "a ModelShape", type(shape).__name__)
    for fault in _shape_faults(shape):
        expect(False, "a shape that can be run", fault)
    expect(model.read(model.config) == shape, "the same shape when it is read again", "another")


@check("model", after=(check_config_reads,))
def check_config_missing_field(model: ModelSubject) -> None:
    """A field that is missing (of the example, where there is one) is named, unless its default is
    what the field says.

    If this fails: use ConfigReader's getters without a default; a guessed size loads quietly and
    gives another model.
    """
    for field in _fields(model):
        config = {name: value for name, value in model.sample.items() if name != field}
        _names_or_ignores(model, config, field, f"without '{field}'")


@check("model", after=(check_config_reads,))
def check_config_unknown_field(model: ModelSubject) -> None:
    """A field that nobody reads is refused by name, and accepted with --ignore-config.

    If this fails: end the reader with `reader.finish()`, and give ConfigReader the `ignore` set;
    an unread switch may be mathematics that the model lacks.
    """
    config = {**model.config, UNKNOWN: 1}
    error = _error(model, config, f"with the unknown field '{UNKNOWN}'")
    expect(error is not None, f"a ConfigError for the unknown field '{UNKNOWN}'", "it was read")
    expect(UNKNOWN in str(error), f"an error that names '{UNKNOWN}'", error)
    shape = model.read(config, frozenset({UNKNOWN}))
    expect(shape == model.shape, "the same shape with --ignore-config", "another one")


@check("model", after=(check_config_reads,))
def check_config_wrong_type(model: ModelSubject) -> None:
    """A field of the wrong type is named: an object for any field, `true` for a number.

    If this fails: read every field through ConfigReader, which checks types; a TypeError deep in
    the model names no field.
    """
    for field in _fields(model):
        wrong: list[Any] = [{"rlt_check": "wrong"}]
        value = model.sample[field]
        wrong += [True] if isinstance(value, (int, float)) and not isinstance(value, bool) else []
        for bad in wrong:
            config = {**model.sample, field: bad}
            _names_or_ignores(model, config, field, f"with '{field}' = {bad!r}")


@check("model", after=(check_config_reads,))
def check_reader_imports_light(model: ModelSubject) -> None:
    """Reading a configuration imports no torch, or `rlt explain` takes seconds.

    If this fails: keep the reader in a module of its own that imports rlt_core.contract alone.
    """
    code = (
        "import sys, json; from rlt_core.plugins.loading import load_object\n"
        "load_object(sys.argv[1])(json.loads(sys.argv[2]), 'config.json', frozenset())"
    )
    loaded = heavy_after(code, model.spec.reader, json.dumps(model.config))
    expect(not loaded, "the reader to import nothing heavy", ", ".join(loaded))


# A model is built from a configuration that its reader understood.
CONFIG_HOLDS = (
    *(check_config_reads, check_config_missing_field),
    *(check_config_unknown_field, check_config_wrong_type),
)


def _fields(model: ModelSubject) -> list[str]:
    """The fields that may matter: what every checkpoint has beside the mathematics is left out."""
    return sorted(set(model.sample) - HARMLESS)


def _names_or_ignores(model: ModelSubject, config: dict[str, Any], field: str, what: str) -> None:
    error = _error(model, config, what)
    if error is None:
        same = model.read(config) == model.read(model.sample)
        expect(same, f"{what}: a ConfigError that names it", "another shape, quietly")
        return
    expect(field in str(error), f"{what}: the field's name", error)


def _error(model: ModelSubject, config: dict[str, Any], what: str) -> ConfigError | None:
    try:
        model.read(config)
    except ConfigError as error:
        return error
    except Exception as error:  # a reader that raises anything else is what is looked for
        expect(False, f"{what}: a ConfigError", one_line(error))
    return None


def _shape_faults(shape: ModelShape) -> Iterator[str]:
    for field in ("loops", "max_loops", "vocab_size", "state_width", "max_positions"):
        value = getattr(shape, field)
        if type(value) is not int or value < 1:
            yield f"{field} is {value!r}"
            return
    if shape.max_loops < shape.loops:
        yield f"max_loops {shape.max_loops} is below loops {shape.loops}"
    if shape.dtype not in DTYPES:
        yield f"dtype is {shape.dtype!r}, not {' or '.join(DTYPES)}"
    names = [track.name for track in shape.tracks]
    if not names or len({*names}) < len(names):
        yield f"tracks are named {names}"
    for track in shape.tracks:
        if min(track.num_layers, track.num_kv_heads, track.head_dim) < 1:
            yield f"track '{track.name}' has an empty size"
    outside = [token for token in shape.eos_token_ids if not 0 <= token < shape.vocab_size]
    if outside:
        yield f"eos_token_ids {outside} are outside the vocabulary of {shape.vocab_size}"
