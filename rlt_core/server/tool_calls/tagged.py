"""Calls between <tool_call> and </tool_call>, as Qwen, Nanbeige and others write them."""

from __future__ import annotations

from collections.abc import Sequence

from rlt_core.server.tool_calls.json_body import JsonBody
from rlt_core.server.tool_calls.parts import Body, CallDelta, Parts, Tool, ToolParser
from rlt_core.server.tool_calls.xml_body import FUNCTION, XmlBody

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class TaggedFormat:
    """A block holds a JSON object, or a <function=...>; which of them, the block itself tells."""

    tags: Sequence[str] = (OPEN, CLOSE)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one answer."""
        return TaggedParser(tools)

    def frame(self) -> tuple[str, str]:
        """What a forced call stands in."""
        return f"{OPEN}\n", f"\n{CLOSE}"


class TaggedParser:
    """Cuts an answer at its blocks.

    White space around a block belongs to neither side. A block that is no call (no JSON object
    with a name, no function, not the bare name of a tool) is text of the answer as it stands;
    what follows a call inside its block is dropped.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self._held, self._space, self._block = "", "", ""
        self._body: Body | None = None
        self._read = self._content
        self._num_begun, self.num_complete = 0, 0
        self._is_named, self._has_content = False, False

    def feed(self, text: str) -> Parts:
        """What is certain now."""
        self._held += text
        parts = Parts()
        while self._read(parts):
            pass
        return parts

    def flush(self) -> Parts:
        """What was held. A call that the end cut off keeps what it has."""
        parts = Parts()
        if self._read == self._content:
            self._say(self._held, parts)
        elif self._read != self._behind and not self._is_named:
            self._say(self._block + self._held, parts)
        if not self._num_begun:
            parts.content += self._space
        self._held, self._space = "", ""
        return parts

    def _content(self, parts: Parts) -> bool:
        before, tag, behind = self._held.partition(OPEN)
        if not tag:
            keep = _num_begun(before, OPEN)
            self._say(before[: len(before) - keep], parts)
            self._held = before[len(before) - keep :]
            return False
        self._say(before, parts)
        self._held, self._block = behind, tag
        self._body, self._is_named = None, False
        self._read = self._choose
        return True

    def _choose(self, parts: Parts) -> bool:
        """Tells what the block holds, as soon as that is certain."""
        text = self._held.lstrip()
        if text.startswith("{"):
            self._body = JsonBody()
        elif text.startswith(FUNCTION):
            self._body = XmlBody(self._tools)
        elif FUNCTION.startswith(text):
            return False
        self._read = self._inside if self._body else self._bare
        return True

    def _inside(self, parts: Parts) -> bool:
        if self._body is None or not self._held:
            return False
        arguments, rest = self._body.feed(self._held)
        self._block += self._held[: max(0, len(self._held) - len(rest or ""))]
        self._held = rest or ""
        if self._body.name:
            self._call(self._body.name, arguments, parts)
        if rest is None:
            return False
        if self._is_named:
            self.num_complete += 1
            self._read = self._behind
        else:
            self._read = self._bare
        return True

    def _bare(self, parts: Parts) -> bool:
        """A block that is no call, unless it is a tool's name and nothing else."""
        inside, tag, behind = self._held.partition(CLOSE)
        if not tag:
            return False
        whole = (self._block + inside).removeprefix(OPEN).strip()
        self._block, self._held = self._block + inside + tag, behind
        if any(tool.name == whole for tool in self._tools):
            self._call(whole, "{}", parts)
            self.num_complete += 1
        else:
            self._say(self._block, parts)
        self._read = self._content
        return True

    def _behind(self, parts: Parts) -> bool:
        """Between a call's end and its closing tag, which a model may leave out."""
        ends = [(place, tag) for tag in (CLOSE, OPEN) if (place := self._held.find(tag)) >= 0]
        if not ends:
            keep = max(_num_begun(self._held, tag) for tag in (CLOSE, OPEN))
            self._held = self._held[len(self._held) - keep :]
            return False
        place, tag = min(ends)
        self._held = self._held[place + (len(tag) if tag == CLOSE else 0) :]
        self._read = self._content
        return True

    def _call(self, name: str, arguments: str, parts: Parts) -> None:
        if not self._is_named:
            self._is_named, self._space = True, ""
            self._num_begun += 1
            parts.calls.append(CallDelta(index=self._num_begun - 1, name=name))
        if arguments:
            parts.calls.append(CallDelta(index=self._num_begun - 1, arguments=arguments))

    def _say(self, text: str, parts: Parts) -> None:
        """Text of the answer; white space at its end waits for what follows."""
        said = text.rstrip()
        if not said:
            self._space += text
            return
        if self._has_content or not self._num_begun:
            said = self._space + said
        else:
            said = said.lstrip()
        parts.content += said
        self._has_content, self._space = True, text[len(text.rstrip()) :]


def _num_begun(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    lengths = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((n for n in lengths if tag.startswith(text[-n:])), 0)
