"""A browser, and what a test does with the page in it."""

from __future__ import annotations

import base64
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, Route, expect

from rlt_core.api.async_llm import AsyncLLM
from tests.chat_kit import chat_folder
from tests.server_kit import running
from tests.test_openai_chat import FACTORY, TEMPLATE

NAMES = ("chromium", "chromium-browser", "google-chrome")
SHOTS = Path(__file__).resolve().parents[2] / "build" / "page"
# Reads a picture in a page without a policy: colours at places, and how many there are.
_READ = """async ([picture, places]) => {
  const image = await createImageBitmap(await (await fetch(picture)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const all = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const at = ([x, y]) => [...context.getImageData(x, y, 1, 1).data.slice(0, 3)];
  return { colours: new Set(all).size, at: places.map(at) };
}"""
# sRGB, 0 to 255, of a style's color or background, whatever it is written in.
_RGB = """(element, name) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d");
  canvas.fillStyle = getComputedStyle(element)[name];
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}"""


def launch(playwright: Playwright) -> Browser:
    """Chromium of this machine; AssertionError with the remedy where there is none."""
    path = os.environ.get("RLT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    assert path, "no Chromium: apt-get install chromium, or RLT_CHROMIUM=/path/to/it"
    return playwright.chromium.launch(executable_path=path)


@contextmanager
def echoing(folder: Path, **settings: Any) -> Iterator[str]:
    """The URL of a server that answers with the prompt, over and over, at depths 1 2 3 4 1 ..."""
    tokenizer = chat_folder(folder, TEMPLATE)
    llm = AsyncLLM(engine_factory=FACTORY, in_process=True, tokenizer=str(tokenizer))
    with running(llm, **settings) as server:
        yield server.url


@dataclass
class Visit:
    """One visit to the page: what a reader does there, and what the browser did besides."""

    page: Page
    url: str
    allowed: Sequence[str] = ()  # parts of console errors that the test provokes
    errors: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))

    def open(self) -> Visit:
        """Goes to the page and waits until it can be used."""
        self.page.goto(self.url)
        expect(self.page.locator("#send")).to_be_enabled()
        return self

    def fill(self, **values: object) -> None:
        """Fields by id, _ for -."""
        for name, value in values.items():
            self.page.locator(f"#{name.replace('_', '-')}").fill(str(value))

    def ask(self) -> None:
        """Sends the form and waits for the end of the answer."""
        self.page.get_by_role("button", name="Generate").click()
        expect(self.page.locator("#told")).to_contain_text("Ended")

    @property
    def tokens(self) -> list[dict[str, Any]]:
        """text and depth of each token as the page shows it."""
        found: list[dict[str, Any]] = self.page.locator(".token").evaluate_all(
            "all => all.map(e => ({text: e.textContent, depth: Number(e.dataset.depth)}))"
        )
        return found

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The bodies of all requests for answers."""
        return [r.post_data_json for r in self.requests if "completions" in r.url]

    def rgb(self, selector: str, name: str = "backgroundColor", nth: int = 0) -> tuple[int, ...]:
        """A computed colour."""
        return tuple(self.page.locator(selector).nth(nth).evaluate(_RGB, name))

    def picture(self, name: str) -> bytes:
        """A picture of the whole page, kept in build/page/."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        found: bytes = self.page.screenshot(path=path, full_page=True, animations="disabled")
        return found

    def read(self, picture: bytes, places: Sequence[tuple[float, float]]) -> dict[str, Any]:
        """`colours`: how many a picture has; `at`: those at places (pixels)."""
        blank = self.page.context.new_page()
        try:
            data = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            found: dict[str, Any] = blank.evaluate(_READ, [data, list(places)])
        finally:
            blank.close()
        return found

    def check(self) -> None:
        """What holds for every visit: nothing went elsewhere, nothing went wrong."""
        away = [r.url for r in self.requests if not r.url.startswith(self.url)]
        assert away == [], "a request left the origin"
        assert self.errors == [], "the console has errors"

    def _said(self, message: ConsoleMessage) -> None:
        is_error = message.type in ("error", "warning")
        if is_error and not any(part in message.text for part in self.allowed):
            print(message.text, file=sys.stderr)
            self.errors.append(message.text)


def streaming(text: str) -> Callable[[Route], None]:
    """Answers a request with a stream of this text."""
    return lambda route: route.fulfill(content_type="text/event-stream", body=text)


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """Of two sRGB colours, as WCAG counts it: 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[int]) -> float:
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
