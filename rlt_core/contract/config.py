"""Strict reading of config.json for a model's reader. Imports no torch.

A field that a model needs has no default: a guessed one loads quietly and gives another model. A
field that nobody read is refused unless it is known to be harmless or has a neutral value, because
it may switch on mathematics that the reader knows nothing of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rlt_core.contract.errors import ConfigError

T = TypeVar("T")

# Fields that say nothing about what the model computes when it runs.
HARMLESS = frozenset(
    {
        *("_name_or_path", "architectures", "auto_map", "bos_token_id", "decoder_start_token_id"),
        *("dtype", "eos_token_id", "id2label", "initializer_range", "keys_to_ignore_at_inference"),
        *("label2id", "max_window_layers", "model_type", "pad_token_id", "sep_token_id", "task"),
        *("tokenizer_class", "torch_dtype", "transformers_version", "unk_token_id", "use_cache"),
        *("attn_implementation", "_attn_implementation", "is_decoder", "problem_type"),
        *("attention_dropout", "hidden_dropout", "resid_pdrop", "output_attentions"),
        *("output_hidden_states", "return_dict", "use_return_dict", "torchscript"),
    }
)
_DTYPES = ("float32", "bfloat16")
_ABSENT = object()


class ConfigReader:
    """Typed getters over a parsed config.json; `finish` refuses what nobody asked for.

    `ignore` names fields to leave unread, from --ignore-config. Every getter raises ConfigError
    that names the field: missing without a `default`, of another type (true is no number, NaN and
    infinity are none either), or below `minimum` or above `maximum` (both inclusive).
    """

    def __init__(self, config: Mapping[str, Any], path: str, ignore: frozenset[str]) -> None:
        self.path, self.ignore = path, ignore
        self._config = config
        self._read: set[str] = set()

    def __contains__(self, field: str) -> bool:
        return field in self._config and field not in self.ignore

    def raw(self, field: str) -> Any:
        """The value as it stands, or None where it is absent or ignored; counts as read."""
        self._read.add(field)
        return self._config[field] if field in self else None

    def integer(
        self,
        field: str,
        *,
        default: int | None = None,
        minimum: int = 1,
        maximum: int | None = None,
    ) -> int:
        """A whole number, from 1 unless said otherwise."""
        value: int = self._get(field, default, _is_int, "a whole number")
        self._check_range(field, value, minimum, maximum)
        return value

    def number(
        self,
        field: str,
        *,
        default: float | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> float:
        """A finite number; whole ones count."""
        value: float = self._get(field, default, _is_number, "a finite number")
        self._check_range(field, value, minimum, maximum)
        return float(value)

    def flag(self, field: str, *, default: bool | None = None) -> bool:
        """true or false."""
        value: bool = self._get(field, default, _is(bool), "true or false")
        return value

    def text(self, field: str, *, default: str | None = None) -> str:
        """A text."""
        value: str = self._get(field, default, _is(str), "a text")
        return value

    def sequence(self, field: str, *, default: list[Any] | None = None) -> list[Any]:
        """A list of anything."""
        value: list[Any] = self._get(field, default, _is(list), "a list")
        return value

    def constant(self, field: str, *known: object, default: object = _ABSENT) -> None:
        """A field that may only have one of the `known` values: nothing else is built."""
        value = self.raw(field) if field in self else default
        self._read.add(field)
        if value is _ABSENT:
            raise self.error(field, "is missing", f"it must be {_either(known)}")
        if not any(type(value) is type(good) and value == good for good in known):
            reason = f"is {value!r:.60}; only {_either(known)} is built"
            raise self.error(field, reason, self._past(field))

    def token_ids(self, field: str, vocab_size: int) -> tuple[int, ...]:
        """No id (absent or null), one, or a list of them, each below vocab_size."""
        value = self.raw(field)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(_is_int(i) and 0 <= i < vocab_size for i in ids):
            raise self.error(field, f"is {value!r}; token ids are 0 to {vocab_size - 1}")
        return tuple(dict.fromkeys(ids))

    def dtype(self) -> str:
        """float32 or bfloat16, by `dtype` or the older `torch_dtype`; float32 where neither is.

        float16 is refused: states of models trained in bfloat16 overflow in it.
        """
        fields = [field for field in ("dtype", "torch_dtype") if self.raw(field) is not None]
        names = {str(self.raw(field)).removeprefix("torch.") for field in fields}
        if len(names) > 1:
            raise self.error("dtype", f"and torch_dtype disagree: {' and '.join(sorted(names))}")
        name = names.pop() if names else "float32"
        if name not in _DTYPES:
            fix = "to load as float32: " + " ".join(f"--ignore-config {f}" for f in fields)
            raise self.error(fields[0], f"is {name}; it must be {_either(_DTYPES)}", fix)
        return name

    def rope_theta(self) -> float:
        """The base of the rotary embedding, as a field of its own, nested, or both if equal.

        Raises ConfigError for a conflict, when it is nowhere, and for any scaling of positions.
        """
        found: dict[str, float] = {}
        if "rope_theta" in self:
            found["rope_theta"] = self.number("rope_theta", minimum=1.0)
        for field in ("rope_parameters", "rope_scaling"):
            found |= self._nested_theta(field)
        if len(set(found.values())) > 1:
            told = " and ".join(f"{name} {value:g}" for name, value in found.items())
            raise self.error("rope_theta", f"has two values: {told}")
        if not found:
            raise self.error("rope_theta", "is missing (so is rope_parameters.rope_theta)")
        return next(iter(found.values()))

    def finish(self) -> None:
        """Refuse fields that nobody read and that may change the mathematics."""
        for field, value in self._config.items():
            if field in self._read or field in HARMLESS or field in self.ignore:
                continue
            if not _is_neutral(value):
                reason = f"is unknown and may change what the model computes (value {value!r:.60})"
                raise self.error(field, reason, self._past(field))

    def error(self, field: str, reason: str, fix: str | None = None) -> ConfigError:
        """A ConfigError at this file."""
        return ConfigError(self.path, field, reason, fix)

    def _get(self, field: str, default: T | None, fits: Callable[[Any], bool], what: str) -> Any:
        value = self.raw(field)
        if field not in self or (value is None and default is not None):
            if default is None:
                raise self.error(field, f"is missing; it must be {what}")
            return default
        if not fits(value):
            raise self.error(field, f"is {value!r:.60}, not {what}")
        return value

    def _check_range(
        self, field: str, value: float, minimum: float | None, maximum: float | None
    ) -> None:
        if minimum is not None and value < minimum:
            raise self.error(field, f"is {value!r}; it must be at least {minimum!r}")
        if maximum is not None and value > maximum:
            raise self.error(field, f"is {value!r}; it must be at most {maximum!r}")

    def _nested_theta(self, field: str) -> dict[str, float]:
        value = self.raw(field)
        if value is None or value == {}:
            return {}
        if not isinstance(value, dict):
            raise self.error(field, f"is {value!r:.60}, not an object")
        inner = ConfigReader(value, f"{self.path} ({field})", self.ignore)
        for name in ("rope_type", "type"):
            inner.constant(name, "default", None, default="default")
        inner.constant("partial_rotary_factor", 1.0, 1, None, default=None)
        theta = {}
        if "rope_theta" in inner:
            theta = {f"{field}.rope_theta": inner.number("rope_theta", minimum=1.0)}
        inner.finish()
        return theta

    def _past(self, field: str) -> str:
        return f"to load it all the same: --ignore-config {field}"


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_neutral(value: Any) -> bool:
    if isinstance(value, list):
        return all(item == "full_attention" for item in value)
    return value is None or value is False or value == {}


def _either(values: Iterable[object]) -> str:
    return " or ".join("null" if value is None else str(value) for value in values)
