"""A model as a client of its stage needs it: what to start, and how to read and write its text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rlt_core.api.chat import ChatFormat
from rlt_core.api.defaults import GenerationDefaults, read_generation_defaults
from rlt_core.api.engine_options import stage_config
from rlt_core.api.option_kinds import check_names
from rlt_core.api.tokenizer import Tokenizer, as_tokenizer, load_tokenizer
from rlt_core.contract.errors import OptionError
from rlt_core.plugins.model_folder import find_model_folder
from rlt_core.plugins.registry import discover
from rlt_core.plugins.resolve import resolve
from rlt_core.stage.config import DEFAULT_BUILDER, StageConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """The checked choice of a stage, and the files of the checkpoint that its clients read."""

    config: StageConfig
    tokenizer: Tokenizer | None
    chat: ChatFormat
    defaults: GenerationDefaults


def open_model(
    owner: type,
    model: str | os.PathLike[str] | None,
    tokenizer: object,
    options: Mapping[str, Any],
) -> ModelAccess:
    """Checks the choice of `engine_options.stage_config`; an RltError before any weight is read,
    or a process started, where it cannot work. Imports no torch.

    owner: the class that was given these options besides those that it names itself; a TypeError
    for one that nobody takes.
    """
    check_names(owner, options, owner, stage_config)
    config = _resolved(stage_config(model, **options))
    texts = _tokenizer(tokenizer, config.model_path)
    return ModelAccess(
        config=config,
        tokenizer=texts,
        chat=ChatFormat(texts, config.model_path),
        defaults=read_generation_defaults(config.model_path),
    )


def _resolved(config: StageConfig) -> StageConfig:
    """The config with its model's folder."""
    if config.engine_factory != DEFAULT_BUILDER:
        return config
    registry = discover()
    folder = find_model_folder(config.model_path, registry)
    config = msgspec.structs.replace(config, model_path=folder)
    resolve(config.choice(), registry)
    return config


def _tokenizer(given: object, model_path: str | None) -> Tokenizer | None:
    if given is None:
        return None if model_path is None else load_tokenizer(model_path)
    if given == "":
        raise OptionError("tokenizer", given, "it is empty; it must be a folder's path")
    if isinstance(given, (str, os.PathLike)):
        found = load_tokenizer(os.fspath(given))
        if found is None:
            raise OptionError("tokenizer", os.fspath(given), "the folder has no tokenizer")
        return found
    return as_tokenizer(given)
