"""Where a checkpoint keeps its chat templates, and which of them a call takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.chat import ChatFormat
from rlt_core.api.special_tokens import read_special_tokens
from rlt_core.api.tokenizer import LibraryTokenizer, as_tokenizer, load_tokenizer
from rlt_core.contract.errors import CheckpointError, RequestError
from tests.chat_kit import chat_folder, user

TOOL = {"type": "function", "function": {"name": "f"}}


def text_of(name: str) -> str:
    """A template that writes its name."""
    return f"{name}{{{{ tools | length if tools }}}}:{{{{ messages[0].content }}}}"


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": text_of(name)} for name in names]


def rendered(folder: Path, **options: Any) -> str:
    form = ChatFormat(load_tokenizer(folder), str(folder))
    return form.conversation([user("Hi")], **options).rendered.text


def add(folder: Path, name: str) -> None:
    more = folder / "additional_chat_templates"
    more.mkdir(exist_ok=True)
    (more / f"{name}.jinja").write_text(text_of(name))


def test_every_place_in_the_order_of_transformers(tmp_path: Path) -> None:
    """A template in a file of its own lost against an older one in tokenizer_config.json, or one
    of the three forms was not found."""
    config = {"chat_template": text_of("config")}
    folders = {
        "config": chat_folder(tmp_path / "config", **config),
        "list": chat_folder(tmp_path / "list", chat_template=named("default", "other")),
        "file": chat_folder(tmp_path / "file", text_of("file"), **config),
        "folder": chat_folder(tmp_path / "folder", **config),
    }
    add(folders["folder"], "default")
    assert rendered(folders["config"]) == "config:Hi"
    assert rendered(folders["list"]) == "default:Hi"
    assert rendered(folders["file"]) == "file:Hi"
    assert rendered(folders["folder"]) == "default:Hi"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("place", ["config", "list", "file", "folder", "both"])
@pytest.mark.parametrize("options", [{}, {"tools": [TOOL]}, {"chat_template": "tool_use"}])
def test_the_choice_is_that_of_transformers(
    tmp_path: Path, place: str, options: dict[str, Any]
) -> None:
    """Tools went to a template that has no place for them although another one has."""
    from transformers import AutoTokenizer

    config: dict[str, Any] = {"chat_template": text_of("config")}
    if place == "list":
        config = {"chat_template": named("default", "tool_use")}
    folder = chat_folder(tmp_path, text_of("file") if place in ("file", "both") else None, **config)
    for name in ("default", "tool_use")[place == "both" :]:
        if place in ("folder", "both"):
            add(folder, name)
    if options.get("chat_template") and place in ("config", "file"):
        with pytest.raises(RequestError, match="no name of one"):
            rendered(folder, **options)
        return
    loaded = AutoTokenizer.from_pretrained(folder)
    assert rendered(folder, **options) == loaded.apply_chat_template(
        [user("Hi")], tokenize=False, add_generation_prompt=True, **options
    )


def test_a_template_of_the_call(tmp_path: Path) -> None:
    """A template given as a file, by name or as text was taken for one of the other two."""
    folder = chat_folder(tmp_path / "a", chat_template=named("default", "other"))
    file = tmp_path / "own.jinja"
    file.write_text(text_of("own"))
    for given, expected in (
        (file, "own:Hi"),
        (str(file), "own:Hi"),
        ("other", "other:Hi"),
        (text_of("text"), "text:Hi"),
        (None, "default:Hi"),
    ):
        assert rendered(folder, chat_template=given) == expected
    with pytest.raises(RequestError) as caught:
        rendered(folder, chat_template="othr")
    assert "(there are: default, other)" in str(caught.value)


def test_without_a_template(tmp_path: Path) -> None:
    """A checkpoint without a template got a stock one, and answered badly."""
    folder = chat_folder(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        rendered(folder)
    assert "it has no chat template (no chat_template.jinja, and none in" in str(caught.value)
    assert "--chat-template FILE" in str(caught.value)
    assert str(folder) in str(caught.value)
    assert rendered(folder, chat_template=text_of("given")) == "given:Hi"


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (named("a", "b"), "no chat template is named 'default'; there are a, b"),
        (7, "field 'chat_template' is neither a text nor a list"),
        ([{"name": "default"}], "field 'chat_template' is neither a text nor a list"),
        (["x"], "field 'chat_template' is neither a text nor a list"),
    ],
)
def test_a_damaged_or_unclear_config(tmp_path: Path, field: object, says: str) -> None:
    """A damaged field was a KeyError, and of several templates any one was taken."""
    folder = chat_folder(tmp_path, chat_template=field)
    with pytest.raises(CheckpointError) as caught:
        rendered(folder)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4


def test_damaged_files(tmp_path: Path) -> None:
    """A file that cannot be read was a traceback."""
    folder = chat_folder(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{ 1 }}")
    with pytest.raises(CheckpointError, match="the chat template cannot be read"):
        rendered(folder)
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="no readable JSON"):
        rendered(folder)


@pytest.mark.timeout(240)
def test_a_tokenizer_of_the_user_s_own(tmp_path: Path) -> None:
    """The template of another tokenizer's folder, or of a library's object, lost against the
    model's; the model's was not taken where the tokenizer has none."""
    from transformers import AutoTokenizer

    model = chat_folder(tmp_path / "model", text_of("model"))
    own = chat_folder(tmp_path / "own", text_of("own"))
    bare = chat_folder(tmp_path / "bare")

    def text(tokenizer: Any) -> str:
        return ChatFormat(tokenizer, str(model)).conversation([user("Hi")]).rendered.text

    assert text(load_tokenizer(own)) == "own:Hi"
    assert text(load_tokenizer(bare)) == "model:Hi"
    library = load_tokenizer(bare)
    assert isinstance(library, LibraryTokenizer)
    assert text(LibraryTokenizer(library.given)) == "model:Hi"
    loaded = AutoTokenizer.from_pretrained(bare)
    assert text(as_tokenizer(loaded)) == "model:Hi"
    loaded.chat_template = "{{ bos_token }}object:{{ messages[0].content }}"
    loaded.bos_token = "<|im_start|>"
    assert text(as_tokenizer(loaded)) == "<|im_start|>object:Hi"


def test_special_tokens_of_both_forms(tmp_path: Path) -> None:
    """A token written as a table came out as a table; the older file won over the newer form."""
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<old>"}))
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "x_token": "x"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_special_tokens(tmp_path) == {"bos_token": "<old>", "eos_token": "</s>"}
    config["added_tokens_decoder"] = {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}
