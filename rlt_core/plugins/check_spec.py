"""What a spec must look like before it is registered; what is wrong is its plugin's error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from rlt_core.contract.capabilities import Word
from rlt_core.contract.specs import (
    STATE_SEED,
    AttentionSpec,
    ExitPolicySpec,
    Extra,
    ModelSpec,
    OpSpec,
    ParamSpec,
    Spec,
)
from rlt_core.plugins.loading import is_dotted

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_WORDS = tuple(word.value for word in Word)
# Kinds of a model's options, and the types of their defaults.
_DEFAULTS: dict[str, tuple[type, ...]] = {
    "float": (float, int),
    "int": (int,),
    "flag": (bool,),
    "table": (type(None),),
}


def spec_faults(spec: Spec) -> Iterator[str]:
    """Sentences on what is wrong with a spec; none when it may be registered."""
    name: object = spec.id
    if not isinstance(name, str) or not _ID.fullmatch(name):
        yield f"id {name!r} is not a name of letters, digits, '_', '.' and '-'"
    for field in ("factory", "reader", "example"):
        value = getattr(spec, field, "package.module:Name")
        if not is_dotted(value) and (field, value) != ("example", None):
            yield f"'{spec.id}': {field} {value!r} is not of the form package.module:Name"
    for field in ("provides", "needs", "refuses"):
        yield from (f"'{spec.id}': {field} {fault}" for fault in _word_faults(spec, field))
    if isinstance(spec, ModelSpec) and not (spec.model_types or spec.architectures):
        yield f"'{spec.id}': neither model_types nor architectures name a checkpoint"
    if isinstance(spec, ModelSpec):
        yield from (f"'{spec.id}': {fault}" for fault in _option_faults(spec.options))
    if isinstance(spec, ExitPolicySpec):
        for param in spec.params:
            if param.kind in ("flag", "table") or param.chains:
                yield f"'{spec.id}': parameter '{param.name}' is of a kind that models have"
    if isinstance(spec, (AttentionSpec, OpSpec)) and not (spec.devices and spec.dtypes):
        yield f"'{spec.id}': devices and dtypes must name at least one each"
    if not isinstance(getattr(spec, "extra", None), (Extra, type(None))):
        yield f"'{spec.id}': extra is no Extra"


def _option_faults(options: Iterable[ParamSpec]) -> Iterator[str]:
    names: set[str] = set()
    for option in options:
        said = f"option '{option.name}'"
        if not option.name.isidentifier() or option.name in names:
            yield f"{said}: a name is an identifier, and used once"
        names.add(option.name)
        kinds = _DEFAULTS.get(option.kind)
        if kinds is None:
            yield f"{said}: kind '{option.kind}' is not one of {', '.join(_DEFAULTS)}"
        elif type(option.default) not in kinds:
            yield f"{said}: {option.default!r} is no default for kind '{option.kind}'"
        if option.name == STATE_SEED and option.kind != "int":
            yield f"{said} keys the random bits, so it is of kind 'int'"


def _word_faults(spec: Spec, field: str) -> Iterator[str]:
    words: object = getattr(spec, field)
    if isinstance(words, str) or not isinstance(words, Iterable):
        yield f"is {type(words).__name__}, not a set of words"
        return
    for word in words:
        # A word of a plugin's own has a dot: `name.word`.
        if word not in _WORDS and "." not in str(word):
            near = difflib.get_close_matches(str(word), _WORDS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            yield f"has the unknown word '{word}'{hint}; a word of your own is 'name.word'"
