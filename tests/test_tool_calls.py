"""Tool calls are read out of an answer, however its text comes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from rlt_core.contract.errors import OptionError, UnknownNameError
from rlt_core.server.tool_calls.formats import format_of_template, named_format
from rlt_core.server.tool_calls.parts import CallDelta, Parts, Tool
from rlt_core.server.tool_calls.tagged import TaggedFormat
from tests.chat_kit import template

TOOLS = (
    Tool(
        name="weather",
        parameters={
            "properties": {
                "city": {"type": "string"},
                "zip": {"type": ["string", "null"]},
                "days": {"type": "integer"},
                "tags": {"type": "array"},
            }
        },
    ),
    Tool(name="now"),
)
JSON = '{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}'
Call = tuple[str, str]
# (text, content, calls)
TEXTS: list[tuple[str, str, list[Call]]] = [
    ("", "", []),
    ("  hello \n", "  hello \n", []),
    ("a < b <tool_cal", "a < b <tool_cal", []),
    ("</tool_call> x", "</tool_call> x", []),
    (
        f"<tool_call>\n{JSON}\n</tool_call>",
        "",
        [("weather", '{"city": "Zürich", "days": 2}')],
    ),
    (
        'Wait.\n\n<tool_call>{"name":"now","arguments":{}}</tool_call>\n',
        "Wait.",
        [("now", "{}")],
    ),
    (
        '\n<tool_call>{"name":"now"}</tool_call>\n<tool_call>{"name":"now"}</tool_call> end',
        "end",
        [("now", "{}"), ("now", "{}")],
    ),
    (
        'a <tool_call>{"name":"now"}</tool_call> b\n<tool_call>{"name":"now"}</tool_call>',
        "a b",
        [("now", "{}"), ("now", "{}")],
    ),
    # arguments first, under another name, as a string, as null; a key that only looks like one
    (
        '<tool_call>{"arguments": {"a": [1, {"b": "}"}]}, "name": "f"}',
        "",
        [("f", '{"a": [1, {"b": "}"}]}')],
    ),
    ('<tool_call>{"name": "f", "parameters" : { "a":1 } }</tool_call>', "", [("f", '{ "a":1 }')]),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"x": {"name": "g"}, "name": "f", "y": [","]}</tool_call>', "", [("f", "{}")]),
    (
        '<tool_call>{"name": "f", "arguments": {"t": "</tool_call> \\" \\\\"}}</tool_call>',
        "",
        [("f", '{"t": "</tool_call> \\" \\\\"}')],
    ),
    # cut off, a brace short, a closing tag short, junk behind the call
    ('<tool_call>{"name": "f", "arguments": {"city": "Z', "", [("f", '{"city": "Z')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>b', "b", [("f", '{"a": 1}')]),
    (
        '<tool_call>{"name": "f"}\n<tool_call>{"name": "g"}</tool_call>',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    ('<tool_call>{"name": "f"} {"name": "g"} </tool_call>', "", [("f", "{}")]),
    # no calls: no name, no JSON, never closed
    ('x <tool_call>{"a": 1}</tool_call> y', 'x <tool_call>{"a": 1}</tool_call> y', []),
    ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
    ("<tool_call>what</tool_call>", "<tool_call>what</tool_call>", []),
    ("<tool_call> what ", "<tool_call> what ", []),
    ('<tool_call>{"nam', '<tool_call>{"nam', []),
    # the bare name of a tool
    ("<tool_call>\nnow\n</tool_call>", "", [("now", "{}")]),
    # tags instead of JSON
    (
        "<tool_call>\n<function=weather>\n<parameter=city>\n12 <b>\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "",
        [("weather", '{"city": "12 <b>", "days": 2}')],
    ),
    ("<tool_call><function=now></function></tool_call>", "", [("now", "{}")]),
    ("<tool_call><function=now></tool_call>!", "!", [("now", "{}")]),
    (
        '<tool_call><function=weather><parameter=tags>[1, "é"]</parameter>'
        "<parameter=zip>0</parameter><parameter=days>two</parameter><parameter=else>{}</function></tool_call>",
        "",
        [("weather", '{"tags": [1, "é"], "zip": "0", "days": "two", "else": {}}')],
    ),
    (
        "<tool_call><function=weather><parameter=city>a</parameter><parameter=days>3",
        "",
        [("weather", '{"city": "a"')],
    ),
]


def cut(pieces: Sequence[str]) -> tuple[str, list[Call], int]:
    parser, deltas, content = TaggedFormat().parser(TOOLS), list[CallDelta](), ""
    parts: list[Parts] = [*(parser.feed(piece) for piece in pieces), parser.flush()]
    for part in parts:
        content += part.content
        deltas += part.calls
    calls: list[Call] = []
    for delta in deltas:
        if delta.name is not None:
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        calls[delta.index] = (calls[delta.index][0], calls[delta.index][1] + delta.arguments)
    return content, calls, parser.num_complete


@pytest.mark.parametrize(("text", "content", "calls"), TEXTS)
def test_calls_in_every_split(text: str, content: str, calls: list[Call]) -> None:
    """CASES A43: a call without its function tag was lost; a tag in two pieces was shown as text,
    a brace or a tag inside a string ended the call."""
    assert cut([text])[:2] == (content, calls)
    assert cut(list(text))[:2] == (content, calls)
    for place in range(len(text) + 1):
        assert cut([text[:place], text[place:]])[:2] == (content, calls), place


def test_random_pieces_agree(seed: int) -> None:
    """What one answer held depended on how its tokens were cut."""
    chance = random.Random(seed)
    parts = [*'\n {}":,<>\\a', "<tool_call>", "</tool_call>", "<function=now>", "</function>"]
    parts += ['"name": "f"', '"arguments": {', "<parameter=days>", "</parameter>", JSON]
    for _ in range(400):
        text = "".join(chance.choices(parts, k=chance.randint(1, 14)))
        places = sorted(chance.choices(range(len(text) + 1), k=3))
        pieces = [text[a:b] for a, b in zip((0, *places), (*places, None), strict=True)]
        assert cut(pieces) == cut([text]) == cut(list(text)), repr(text)


def test_arguments_come_as_they_are_written() -> None:
    """A client saw nothing of a long argument until it was whole."""
    parser = TaggedFormat().parser(TOOLS)
    parser.feed('<tool_call>{"name": "f", "arguments": {"text": "one')
    assert parser.feed(" two").calls == [CallDelta(index=0, arguments=" two")]
    assert parser.num_complete == 0
    parser.feed('"}}')
    assert parser.num_complete == 1


def test_formats_by_name_and_template() -> None:
    """The parser of another model was taken, or a misspelt name for none."""
    assert isinstance(named_format("tool_call"), TaggedFormat)
    own = "rlt_core.server.tool_calls.tagged:TaggedFormat"
    assert isinstance(named_format(own), TaggedFormat)
    assert format_of_template(template("tools")) is not None
    assert format_of_template(template("chatml")) is None
    with pytest.raises(UnknownNameError, match="tool_call"):
        named_format("tool_cal")
    with pytest.raises(OptionError, match="no_such"):
        named_format("rlt_core.server.tool_calls.tagged:no_such")


def test_a_frame_is_read_back() -> None:
    """A forced call was text of the answer."""
    before, behind = TaggedFormat().frame()
    arguments = json.dumps({"city": "</tool_call>"})
    text = f'{before}{{"name": "weather", "arguments": {arguments}}}{behind}'
    assert cut([text]) == ("", [("weather", arguments)], 1)
