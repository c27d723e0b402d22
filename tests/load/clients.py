"""Clients that stay, leave, break off and write nonsense, and what becomes of their requests."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.load.offered import Answer, Asked, broken
from tests.load.served import headers

HUNG_S = 60.0
REFUSED_PAUSE_S = 0.5  # half of the shortest Retry-After: clients are not always polite
Got = dict[int, dict[str, Any]]


@dataclass(slots=True)
class Tally:
    """What came of the requests. counts: by outcome; answers: choices that ended and were right;
    faults: what must not be. whole: (begun, ended) of requests whose answers were read; errors:
    (begun, ended, outcome) of those that got an error, in seconds of time.monotonic.
    slowest_refusal: seconds until a 429."""

    counts: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    tokens: int = 0
    faults: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    errors: list[tuple[float, float, str]] = field(default_factory=list)
    whole: list[tuple[float, float]] = field(default_factory=list)
    slowest_refusal: float = 0.0

    def seen(self, request_id: str) -> None:
        """Every answer has an id of its own."""
        if request_id in self.ids:
            self.faults.append(f"two answers are called {request_id}")
        self.ids.add(request_id)


class Refused(Exception):
    """An answer that is an error: its status and code."""


class Clients:
    """Any number of clients over one pool of connections; `may_fail`: whether a stage may be
    gone, so that errors are answers too."""

    def __init__(
        self, url: str, offered: list[Asked], seed: int, *, may_fail: bool = False
    ) -> None:
        self._url, self._offered, self._may_fail = url, offered, may_fail
        self._seed, self.tally = seed, Tally()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._http = httpx.AsyncClient(headers=headers(), timeout=HUNG_S, limits=limits)
        self._kinds: tuple[tuple[Callable[..., Coroutine[Any, Any, None]], int], ...] = (
            (self._stream, 62),
            (self._whole, 12),
            (self._leave_stream, 12),
            (self._leave_whole, 5),
            (self._break_off, 4),
            (self._nonsense, 5),
        )

    async def run(self, num: int, until: float, burst_every: float | None) -> Tally:
        """`num` clients until this time.monotonic, and bursts of as many more."""
        tasks = [self._client(i, until) for i in range(num)]
        if burst_every is not None:
            tasks.append(self._bursts(num, until, burst_every))
        await asyncio.gather(*tasks)
        await self._http.aclose()
        return self.tally

    async def _client(self, number: int, until: float) -> None:
        draw = random.Random(self._seed * 1000 + number)
        actions, weights = zip(*self._kinds, strict=True)
        while time.monotonic() < until:
            (action,) = draw.choices(actions, weights)
            await self._one(action, draw)
            if draw.random() < 0.1:
                await asyncio.sleep(draw.random() * 0.2)

    async def _bursts(self, num: int, until: float, every: float) -> None:
        draw = random.Random(self._seed)
        while time.monotonic() + every < until:
            await asyncio.sleep(every)
            await asyncio.gather(*(self._one(self._whole, draw) for _ in range(num)))

    async def _one(self, action: Callable[..., Coroutine[Any, Any, None]], draw: Any) -> None:
        """One request from its beginning to whatever end, which must come."""
        name, began = action.__name__.strip("_"), time.monotonic()
        self.tally.counts["begun"] += 1
        try:
            await asyncio.wait_for(action(draw), HUNG_S)
        except Refused as error:
            ended = time.monotonic()
            self.tally.counts[str(error)] += 1
            self.tally.errors.append((began, ended, str(error)))
            if str(error) == "429 queue_full":
                self.tally.slowest_refusal = max(self.tally.slowest_refusal, ended - began)
                await asyncio.sleep(REFUSED_PAUSE_S)
            elif self._may_fail and str(error).endswith("not_ready"):
                await asyncio.sleep(0.1)
            else:
                self.tally.faults.append(f"{name} got {error}")
        except (asyncio.TimeoutError, httpx.HTTPError) as error:
            self.tally.faults.append(
                f"{name} after {time.monotonic() - began:.1f} s: {_causes(error)}"
            )
        else:
            self.tally.counts[name] += 1
            if action in (self._stream, self._whole):
                self.tally.whole.append((began, time.monotonic()))

    async def _whole(self, draw: random.Random) -> None:
        asked = draw.choice(self._offered)
        answer = await self._http.post(f"{self._url}/v1/completions", json=asked.body)
        found = _checked(answer.status_code, answer.headers, answer.json())
        self.tally.seen(found["id"])
        got: Got = {choice["index"]: choice for choice in found["choices"]}
        self._compare(asked, got, len(found["choices"]))

    async def _stream(self, draw: random.Random) -> None:
        asked = draw.choice(self._offered)
        got, ids, events = Got(), set[str](), 0
        async for event in self._events(asked):
            events += 1
            ids.add(event["id"])
            _add(got, event)
        if len(ids) != 1:
            self.tally.faults.append(f"the chunks of one answer are called {ids}")
        self.tally.seen(ids.pop())
        self._compare(asked, got, len(got))

    async def _leave_stream(self, draw: random.Random) -> None:
        asked, most = draw.choice(self._offered), draw.randrange(0, 20)
        got, num = Got(), 0
        async for event in self._events(asked, whole=False):
            if num == most:
                break
            num += 1
            _add(got, event)
        for index, choice in got.items():
            right = asked.answers[index].token_ids
            if right[: len(choice["token_ids"])] != choice["token_ids"]:
                self.tally.faults.append(f"wrong before it was left: {asked.body}")

    async def _leave_whole(self, draw: random.Random) -> None:
        asked = draw.choice(self._offered)
        post = asyncio.ensure_future(
            self._http.post(f"{self._url}/v1/completions", json=asked.body)
        )
        done, _ = await asyncio.wait({post}, timeout=draw.random() * 0.5)
        if not done:
            post.cancel()
            await asyncio.wait({post})
            return
        answer = post.result()
        found = _checked(answer.status_code, answer.headers, answer.json())
        self._compare(asked, {c["index"]: c for c in found["choices"]}, len(found["choices"]))

    async def _break_off(self, draw: random.Random) -> None:
        """The connection ends in the head or in the body of the request."""
        body = json.dumps(draw.choice(self._offered).body).encode()
        host, port = self._url.removeprefix("http://").split(":")
        text = "\r\n".join(f"{name}: {value}" for name, value in headers().items())
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{text}\r\nContent-Length: {len(body)}"
        whole = head.encode() + b"\r\n\r\n" + body
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(whole[: draw.randrange(1, len(whole))])
        await writer.drain()
        await asyncio.sleep(draw.random() * 0.05)
        writer.transport.abort() if draw.random() < 0.5 else writer.close()

    async def _nonsense(self, draw: random.Random) -> None:
        body, route, status = broken(draw)
        answer = await self._http.post(
            f"{self._url}/v1/{route}", content=body, headers={"Content-Type": "application/json"}
        )
        # What only the engine can tell is not looked at while the queue is full.
        if answer.status_code == 429:
            raise Refused("429 queue_full")
        if answer.status_code != status or "error" not in answer.json():
            self.tally.faults.append(f"{body!r} got {answer.status_code} {answer.text[:200]}")

    async def _events(self, asked: Asked, *, whole: bool = True) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream, which ends with [DONE] and nothing behind it."""
        body, ended = {**asked.body, "stream": True}, False
        async with self._http.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                _checked(answer.status_code, answer.headers, answer.json())
            async for line in answer.aiter_lines():
                if not line:
                    continue
                if ended:
                    self.tally.faults.append("something came behind [DONE]")
                ended = line == "data: [DONE]"
                if not ended:
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise Refused(f"event {event['error']['code']}")
                    yield event
        if whole and not ended:
            self.tally.faults.append("a stream ended without [DONE]")

    def _compare(self, asked: Asked, got: Got, num_choices: int) -> None:
        for index, right in enumerate(asked.answers):
            choice = got.get(index)
            found = choice and Answer(
                text=choice["text"],
                token_ids=choice["token_ids"],
                exit_depths=choice["exit_depths"],
                finish_reason=choice["finish_reason"],
            )
            if found != right:
                self.tally.faults.append(f"{asked.body}\n  answer {found}\n  must be {right}")
            else:
                self.tally.answers += 1
                self.tally.tokens += len(right.token_ids)
        if num_choices != len(asked.answers):
            self.tally.faults.append(f"{num_choices} choices for {asked.body}")


def _causes(error: BaseException | None) -> str:
    """The error and what it came of: httpx hides a reset connection three levels deep."""
    found = []
    while error is not None:
        found.append(repr(error))
        error = error.__cause__ or error.__context__
    return " from ".join(found)


def _checked(status: int, given: httpx.Headers, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a 200; Refused for what is an error."""
    if status == 200:
        return body
    if status in (429, 503):
        assert int(given["retry-after"]) >= 1, given
    raise Refused(f"{status} {body['error']['code']}")


def _add(got: Got, event: dict[str, Any]) -> None:
    """Joins what an event brings to what came before it."""
    for choice in event["choices"]:
        one = got.setdefault(
            choice["index"],
            {"text": "", "token_ids": [], "exit_depths": [], "finish_reason": None},
        )
        if one["finish_reason"] is not None:
            raise AssertionError(f"a choice went on behind its end: {event}")
        one["text"] += choice["text"]
        one["token_ids"] += choice.get("token_ids") or []
        one["exit_depths"] += choice.get("exit_depths") or []
        one["finish_reason"] = choice["finish_reason"]
