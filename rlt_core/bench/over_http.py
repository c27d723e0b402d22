"""A running server under a load, asked by its OpenAI route for completions.

Needs httpx, which the extra `bench` brings.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from rlt_core.bench.offered import Ask, Served
from rlt_core.bench.open_load import AskError, Piece
from rlt_core.contract.errors import OptionError

if TYPE_CHECKING:
    import httpx

# Prompts are drawn from the tokens of this text, which every tokenizer has.
SAMPLE = "The quick brown fox, 0 1 2 3 4 5 6 7 8 9. Ann has 7; how many has Bob? jumps lazy dogs"
ANSWER_S = 600.0


class OverHttp:
    """Fits open_load.Target; an async context that holds the connections."""

    def __init__(self, url: str, key: str | None, *, exit_threshold: float | None = None) -> None:
        try:
            import httpx
        except ImportError:
            reason = "asking a server needs httpx, which is not installed"
            raise OptionError("--url", url, reason, "Fix: pip install 'rlt-core[bench]'") from None
        self._url, self._exit_threshold = url.rstrip("/").removesuffix("/v1"), exit_threshold
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError,)
        self._http: httpx.AsyncClient = httpx.AsyncClient(
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=ANSWER_S,
            limits=httpx.Limits(max_connections=None),
        )
        self._model = ""

    async def __aenter__(self) -> OverHttp:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def served(self) -> Served:
        """Of the first model that the server names; OptionError where it says too little."""
        (card, *_) = (await self._get("GET", "/v1/models"))["data"]
        self._model = card["id"]
        tokens = await self._get("POST", "/tokenize", {"model": self._model, "prompt": SAMPLE})
        return Served(
            name=card["id"],
            max_len=int(card.get("max_model_len") or tokens["max_model_len"]),
            loops=card.get("loops"),
            token_ids=sorted(set(tokens["tokens"])),
        )

    async def ask(self, ask: Ask) -> AsyncIterator[Piece]:
        """Greedy, of exactly the length that is asked for."""
        try:
            async with self._http.stream(
                "POST", f"{self._url}/v1/completions", json=self._body(ask)
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    kind = f"{answer.status_code} {_field(answer.text, 'code')}"
                    raise AskError(kind, _field(answer.text, "message"))
                async for line in answer.aiter_lines():
                    piece = _piece(line)
                    if piece is not None:
                        yield piece
        except self._errors as error:
            raise AskError(type(error).__name__, str(error)) from error

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": ask.prompt,
            "max_tokens": ask.num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            "return_exit_depths": True,
        }
        if self._exit_threshold is not None:
            body["exit_threshold"] = self._exit_threshold
        if ask.trace is not None:
            body["trace"] = ask.trace
        return body

    async def _get(self, method: str, path: str, body: object = None) -> Any:
        try:
            answer = await self._http.request(method, self._url + path, json=body)
        except self._errors as error:
            reason = f"{path}: {str(error) or type(error).__name__}"
            raise OptionError("--url", self._url, reason) from error
        if answer.status_code != 200:
            reason = f"{path} answered {answer.status_code} {_field(answer.text, 'code')}"
            fix = "Fix: --api-key" if answer.status_code == 401 else None
            raise OptionError("--url", self._url, reason, fix)
        return answer.json()


def _piece(line: str) -> Piece | None:
    """What a line of the stream brings; AskError where it is an error."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return None
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise AskError(f"stream {event['error'].get('code')}")
    choice = event["choices"][0] if event["choices"] else {}
    tokens = choice.get("token_ids")
    return Piece(len(tokens), choice.get("exit_depths")) if tokens else None


def _field(text: str, name: str) -> str:
    """The code or the message of an error's body."""
    try:
        return str(json.loads(text)["error"][name])
    except (ValueError, KeyError, TypeError):
        return "without a reason"
