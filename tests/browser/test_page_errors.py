"""What the page says when an answer is refused, or breaks off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("playwright", reason="needs rlt-core[browser-tests]")
from playwright.sync_api import expect

from tests.browser.kit import Visit, streaming

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
Visits = Callable[..., Visit]


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (429, {"Retry-After": "7"}, "The server is full: so it is. Try again in 7 s."),
        (503, {"Retry-After": "5"}, "No model serves now: so it is. Try again in 5 s."),
        (400, {}, "The server refuses this: so it is."),
        (401, {}, "The server asks for an API key, and this one is not known."),
    ],
)
def test_errors_are_told_in_words(
    status: int, headers: dict[str, str], words: str, demo: str, visit: Visits
) -> None:
    """A refusal left the page waiting, or showed a number."""
    seen = visit(demo, allowed=(f"status of {status}",)).open()
    body = {"error": {"message": "so it is", "type": "x", "param": None, "code": None}}
    seen.page.route(
        "**/v1/completions",
        lambda route: route.fulfill(status=status, headers=headers, json=body),
    )
    seen.page.get_by_role("button", name="Generate").click()
    expect(seen.page.get_by_role("alert")).to_have_text(words)
    assert seen.page.locator("#key-form").is_visible() == (status == 401)
    seen.page.unroute("**/v1/completions")
    seen.ask()
    expect(seen.page.locator("#problem")).to_be_hidden()


def test_a_stream_that_fails_says_so(demo: str, visit: Visits) -> None:
    """A stage that died in the middle of an answer looked like the answer's end."""
    seen = visit(demo).open()
    event = 'data: {"error": {"message": "the stage ended"}}\n\n'
    for sent, words in ((event, "No model serves now: the stage ended."), ("", "broke off")):
        seen.page.route("**/v1/completions", streaming(sent))
        seen.page.get_by_role("button", name="Generate").click()
        expect(seen.page.get_by_role("alert")).to_contain_text(words)
        seen.page.unroute("**/v1/completions")
