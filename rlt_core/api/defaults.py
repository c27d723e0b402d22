"""Sampling defaults that a checkpoint brings along (generation_config.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.tokenizer import read_json
from rlt_core.contract.errors import ConfigError, RequestError

NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Values for sampling fields that a request leaves unset, and further end-of-text ids."""

    values: Mapping[str, float | int] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


def read_generation_defaults(model_path: str | None) -> GenerationDefaults:
    """What the folder's generation_config.json says; ConfigError for a value out of range.

    `do_sample: false` means greedy, whatever temperature stands beside it.
    """
    if model_path is None or not (file := Path(model_path) / "generation_config.json").is_file():
        return GenerationDefaults()
    data = read_json(file)
    values = {name: data[name] for name in NAMES if data.get(name) is not None}
    if data.get("do_sample") is False:
        values = {"temperature": 0.0}
    for name, value in values.items():
        try:
            SamplingParams(**{name: value})
        except RequestError as error:
            raise ConfigError(str(file), name, error.reason) from error
    eos = data.get("eos_token_id")
    ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    if not all(isinstance(token, int) for token in ids):
        raise ConfigError(str(file), "eos_token_id", f"{eos!r} is no token id")
    return GenerationDefaults(values=values, eos_token_ids=ids)
