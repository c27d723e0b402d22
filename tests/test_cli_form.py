"""`rlt run --json-schema` and `--regex`: what they ask for, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlt_core.cli import main
from rlt_core.cli.run_form import read_form
from rlt_core.contract.errors import OptionError


def test_a_schema_is_text_or_a_file(tmp_path: Path) -> None:
    """A file's name was read as JSON, or JSON as a file's name."""
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema), encoding="utf-8")
    for given in (str(file), json.dumps(schema), " " + json.dumps(schema)):
        form = read_form(given, None)
        assert form is not None
        assert list(json.loads(str(form.json_schema))["properties"]) == ["b", "a"]
    assert read_form(None, None) is None


@pytest.mark.parametrize(
    ("schema", "regex", "option", "says"),
    [
        ("{", None, "--json-schema", "no JSON"),
        ("[1]", None, "--json-schema", "an array"),
        ("no/such/file", None, "--json-schema", "No such file"),
        (None, "", "--regex", "empty"),
        ("{}", "a", "--regex", "another form"),
    ],
)
def test_what_cannot_be_read_is_refused(
    schema: str | None, regex: str | None, option: str, says: str
) -> None:
    """A wrong form must not run as none."""
    with pytest.raises(OptionError, match=says) as caught:
        read_form(schema, regex)
    assert caught.value.option == option


def test_the_demo_answers_in_form(capsys: pytest.CaptureFixture[str]) -> None:
    """The option reaches the request; a form that the demo's words cannot have is refused."""
    asked = ["run", "--in-process", "Ann has 7. Ann?", "--json", "--regex"]
    assert main([*asked, " Gus has [2-4]\\."]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert text in (" Gus has 2.", " Gus has 3.", " Gus has 4.")
    assert main([*asked[:-1], "--json-schema", '{"type": "object"}']) == 2
    assert "no token of the vocabulary can write" in capsys.readouterr().err
