"""The page with the demo model and with one that echoes: what it shows, sends and stops."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

pytest.importorskip("playwright", reason="needs rlt-core[browser-tests]")
from playwright.sync_api import expect

from tests.browser.kit import Visit, echoing, streaming

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
Visits = Callable[..., Visit]
PROMPT = "Bob has 5. Oli has Bob + 8. Dan has Oli + 5. Pam?"
SCRIPT = '<script>alert(1)</script><img src="x" onerror="alert(2)">'


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with echoing(tmp_path_factory.mktemp("chat")) as url:
        yield url


def test_the_first_token_of_the_demo(demo: str, visit: Visits) -> None:
    """`rlt serve` alone gave a page that could not be used as it came."""
    page = visit(demo).open().page
    page.get_by_role("button", name="Generate").click()
    expect(page.locator(".token").first).to_be_visible()
    expect(page.locator("#told")).to_contain_text("the model's end")
    assert page.locator("#answer").inner_text().strip()
    for figure in ("num-tokens", "mean-depth", "pace", "first-token"):
        assert page.locator(f"#{figure}").inner_text() != "–"


def test_an_answer_that_comes_at_once_has_a_pace(demo: str, visit: Visits) -> None:
    """Tokens a second were counted between the first and the last arrival: none, where there is
    one arrival, as of a single token, or of an answer faster than the page."""
    seen = visit(demo).open()
    seen.fill(prompt=PROMPT, temperature=0, max_tokens=1)
    seen.page.get_by_role("button", name="Generate").click()
    expect(seen.page.locator("#told")).to_contain_text("1 token")
    assert float(seen.page.locator("#pace").inner_text()) > 0


def test_tokens_and_colours_are_those_of_the_api(demo: str, visit: Visits) -> None:
    """Tokens had the colour of their neighbour's depth, or all the same one."""
    seen = visit(demo).open()
    seen.page.get_by_label("go on past the end mark").check()
    seen.fill(prompt=PROMPT, temperature=0, seed=3, max_tokens=40)
    seen.ask()
    body = {**seen.sent[0], "stream": False}
    choice = httpx.post(f"{demo}/v1/completions", json=body, timeout=60).json()["choices"][0]
    assert [token["depth"] for token in seen.tokens] == choice["exit_depths"]
    shown = seen.page.locator(".token:not(.mark)").all_text_contents()
    assert "".join(shown) == choice["text"]
    depths = choice["exit_depths"]
    assert len(set(depths)) > 1
    legend = [seen.rgb(f"#legend li[data-depth='{d}']") for d in range(1, 5)]
    assert len(set(legend)) == 4
    for i, depth in enumerate(depths):
        assert seen.rgb(".token", nth=i) == legend[depth - 1]
    for depth in set(depths):
        assert seen.rgb(f".bars[data-depth='{depth}']", "fill") == legend[depth - 1]
        item = seen.page.locator(f"#legend li[data-depth='{depth}']")
        assert item.inner_text().endswith(f": {depths.count(depth)}")
    mean = sum(depths) / len(depths)
    expect(seen.page.locator("#mean-depth")).to_have_text(f"{mean:.2f}")
    said = f"Depth of {len(depths)} tokens, {mean:.2f} of 4 on average"
    expect(seen.page.get_by_role("img", name=said)).to_be_visible()


def test_what_a_token_tells(demo: str, visit: Visits) -> None:
    """The tooltip was that of another token, or could be had with a mouse alone."""
    seen = visit(demo).open()
    seen.fill(prompt=PROMPT, temperature=0)
    seen.ask()
    body = {**seen.sent[0], "stream": False}
    choice = httpx.post(f"{demo}/v1/completions", json=body, timeout=60).json()["choices"][0]

    def expected(i: int) -> list[str]:
        share = 100 * math.exp(choice["logprobs"]["token_logprobs"][i])
        told = [f"depth {choice['exit_depths'][i]} of 4", f"probability {share:.2f} %"]
        return [*told, f"token id {choice['token_ids'][i]}"]

    tip, tokens = seen.page.get_by_role("tooltip"), seen.page.locator(".token")
    for i in (2, 0):
        tokens.nth(i).hover()
        assert [row.strip() for row in tip.locator("p").all_text_contents()][1:] == expected(i)
    seen.page.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    seen.page.locator("#numbers").focus()
    seen.page.keyboard.press("Tab")  # one stop for all tokens
    expect(tokens.first).to_be_focused()
    seen.page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    assert [row.strip() for row in tip.locator("p").all_text_contents()][1:] == expected(1)
    assert tokens.nth(1).get_attribute("aria-describedby") == "tip"
    seen.page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_settings_change_the_request(demo: str, visit: Visits) -> None:
    """Sliders moved and the request stayed; untouched ones overrode the checkpoint's own."""
    seen = visit(demo).open()
    seen.ask()
    loops = {"exit_threshold", "min_loops", "max_loops", "loops", "temperature", "seed"}
    assert loops & set(seen.sent[0]) == set()
    asks = {"return_exit_depths", "return_token_ids", "stream", "logprobs", "prompt"}
    assert asks <= set(seen.sent[0])
    seen.page.get_by_label("Exit threshold", exact=True).fill("0.75")
    seen.page.get_by_label("Min loops").fill("2")
    seen.page.get_by_label("Max loops").fill("3")
    seen.fill(temperature=0.5, seed=7, max_tokens=9)
    seen.ask()
    assert seen.sent[1]["exit_threshold"] == 0.75
    assert (seen.sent[1]["min_loops"], seen.sent[1]["max_loops"]) == (2, 3)
    assert (seen.sent[1]["temperature"], seen.sent[1]["seed"]) == (0.5, 7)
    assert seen.sent[1]["max_tokens"] == 9
    assert {token["depth"] for token in seen.tokens[1:]} <= {2, 3}  # the prompt gives the first
    seen.page.get_by_label("Min loops").fill("4")  # pushes the other
    expect(seen.page.locator("#max-loops-value")).to_have_text("4")
    seen.page.get_by_label("Max loops").fill("1")
    seen.ask()
    assert (seen.sent[2].get("min_loops"), seen.sent[2]["max_loops"]) == (None, 1)
    assert {token["depth"] for token in seen.tokens[1:]} == {1}
    seen.page.get_by_role("button", name="own settings").click()
    seen.ask()
    assert loops & set(seen.sent[3]) == set()


def test_stop_ends_the_request(demo: str, visit: Visits) -> None:
    """Stop emptied the page's own reader, and the server went on to the last token."""
    seen = visit(demo).open()
    seen.page.get_by_label("go on past the end mark").check()
    seen.fill(max_tokens=480)
    before = _metric(demo, "rlt:aborts_total")
    seen.page.get_by_role("button", name="Generate").click()
    expect(seen.page.locator(".token").nth(2)).to_be_visible()
    seen.page.get_by_role("button", name="Stop").click()
    expect(seen.page.locator("#told")).to_contain_text("Stopped after")
    end = time.monotonic() + 3
    while (state := httpx.get(f"{demo}/v1/engine").json()["state"])["slots_used"]:
        assert time.monotonic() < end, state
    assert (state["pages_used"], state["num_waiting"]) == (0, 0)
    assert _metric(demo, "rlt:aborts_total") == before + 1
    assert len(seen.tokens) < 400
    expect(seen.page.locator("#slots")).to_have_text("0 of 4")
    seen.page.get_by_label("go on past the end mark").uncheck()
    seen.ask()  # and the next one is answered


def _metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    (found,) = [line for line in lines if line.startswith(name + "{")]
    return float(found.rsplit(" ", 1)[1])


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_a_text_is_never_markup(kind: str, echo: str, visit: Visits) -> None:
    """A model that writes <script> had it run; characters of several tokens were lost."""
    seen = visit(echo).open()
    text = SCRIPT + " Zürich 漢字 🙂\n"
    length = len(text.encode()) + (1 if kind == "completion" else 0)  # <bos>
    seen.page.get_by_role("radio", name="chat" if kind == "chat" else "text").check()
    seen.fill(prompt=text, max_tokens=length)
    seen.ask()
    shown = "".join(seen.page.locator(".token:not(.mark)").all_text_contents())
    assert shown == text
    assert seen.page.locator("#answer script, #answer img, #tip img").count() == 0
    seen.page.locator(".token").nth(2).hover()
    depths = [1 + i % 4 for i in range(length)]
    assert [token["depth"] for token in seen.tokens] == depths
    body = seen.sent[0]
    assert ("messages" in body) == (kind == "chat")
    assert ("prompt" in body) == (kind != "chat")


def test_a_token_that_is_a_whole_tag_is_text(echo: str, visit: Visits) -> None:
    """Characters one by one are no markup, whichever way they get in; a token that holds a whole
    element is."""
    seen = visit(echo).open()
    marked = {"text": SCRIPT, "index": 0, "finish_reason": "stop", "exit_depths": [2]}
    own = {"tokens": [SCRIPT], "token_logprobs": [-1.0], "text_offset": [0]}
    entry = {"token": SCRIPT, "logprob": -1.0, "bytes": list(SCRIPT.encode())}
    for kind, logprobs in (("text", own), ("chat", {"content": [entry]})):
        choice = {**marked, "token_ids": [5], "logprobs": logprobs}
        event = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        seen.page.route("**/v1/**/completions", streaming(event))
        seen.page.route("**/v1/completions", streaming(event))
        seen.page.get_by_role("radio", name=kind).check()
        seen.ask()
        assert [token["text"] for token in seen.tokens] == [SCRIPT]
        seen.page.locator(".token").hover(position={"x": 5, "y": 5})
        expect(seen.page.get_by_role("tooltip")).to_contain_text("<script>")
        assert seen.page.locator("main script, main img, #tip script, #tip img").count() == 0


def test_the_engine_is_watched_while_it_can_be_seen(demo: str, visit: Visits) -> None:
    """The state stood still, or a forgotten tab asked for it for ever."""
    seen = visit(demo).open()
    expect(seen.page.locator("#slots")).to_have_text("0 of 4")
    expect(seen.page.locator("#model")).to_contain_text("demo · ouro, 4 loops")
    rows = seen.page.locator("#row-loops li")
    expect(rows).to_have_count(4)
    before = rows.first.text_content() or ""
    seen.ask()
    expect(rows.first).not_to_have_text(before)
    polls = [r for r in seen.requests if r.url.endswith("/v1/engine")]
    assert len(polls) >= 2
    # Another tab in front does not hide one in headless Chromium; the page reads this property.
    seen.page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    seen.page.wait_for_timeout(300)
    count = len(seen.requests)
    seen.page.wait_for_timeout(2500)
    assert len(seen.requests) == count
