"""Pictures of the page, compared in structure; they are kept in build/page/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs rlt-core[browser-tests]")
from playwright.sync_api import expect

from tests.browser.kit import Visit, contrast

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
Visits = Callable[..., Visit]
WIDTHS, MODES = (360, 768, 1280), ("light", "dark")
TEXTS = "label, legend, button, h1, h2, h3, dt, dd, .hint, #told, #model, #legend li, .token"
# Elements that stick out of the window, or whose text does not fit into them.
_OUTSIDE = """() => [...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  const seen = e.checkVisibility() && box.width && !e.closest("svg") && e.id !== "tip";
  const cut = e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline";
  return seen && (box.left < -0.5 || box.right > innerWidth + 0.5 || (cut && e.clientWidth));
}).map((e) => e.outerHTML.slice(0, 80))"""
# The ink of a text, and the first background behind it that is not transparent.
_BEHIND = """(e) => {
  const clear = (p) => getComputedStyle(p).backgroundColor === "rgba(0, 0, 0, 0)";
  let behind = e;
  while (behind.parentElement && clear(behind)) behind = behind.parentElement;
  const rgb = (colour) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  return [rgb(getComputedStyle(e).color), rgb(getComputedStyle(behind).backgroundColor)];
}"""


def opened(visit: Visits, url: str, width: int, mode: str) -> Visit:
    size = {"width": width, "height": 900}
    return visit(url, viewport=size, color_scheme=mode).open()


def answered(seen: Visit, length: int = 60) -> None:
    seen.page.get_by_label("go on past the end mark").check()
    seen.fill(max_tokens=length, temperature=1, seed=5)
    seen.ask()
    expect(seen.page.locator("#ticks")).to_be_visible()
    expect(seen.page.locator("#plot .bars").first).to_be_attached()


def box(seen: Visit, selector: str, nth: int = 0) -> dict[str, float]:
    found: Any = (
        seen.page.locator(selector)
        .nth(nth)
        .evaluate(
            "e => { const b = e.getClientRects()[0];"
            " return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}; }"
        )
    )
    return dict(found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_picture_has_its_parts(width: int, mode: str, demo: str, visit: Visits) -> None:
    """The page was blank, without its legend, wider than the window, or one part lay on another."""
    seen = opened(visit, demo, width, mode)
    empty = seen.picture(f"empty-{width}-{mode}")
    assert seen.page.evaluate(_OUTSIDE) == []
    answered(seen)
    picture = seen.picture(f"answer-{width}-{mode}")
    assert seen.page.evaluate(_OUTSIDE) == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    _check_apart(seen)
    # What is painted, not what the styles say: each token's left edge, each colour of the legend.
    tokens = [("#legend li", i) for i in range(4)]
    tokens += [(".token:not(.mark)", i) for i in range(0, 20, 4)]
    places = []
    for selector, i in tokens:
        found = box(seen, selector, i)
        places.append((found["x"] + 4, found["y"] + found["height"] - 3))
    read = seen.read(picture, places)
    assert read["colours"] > 50
    assert seen.read(empty, [])["colours"] > 50
    for (selector, i), painted in zip(tokens, read["at"], strict=True):
        expected = seen.rgb(selector, nth=i)
        assert max(abs(a - b) for a, b in zip(painted, expected, strict=True)) <= 3, (selector, i)


def _check_apart(seen: Visit) -> None:
    names = ("header", "#ask", "#result", "#engine")
    boxes = [box(seen, name) for name in names]
    for i, one in enumerate(boxes):
        assert one["width"] > 200, names[i]
        assert one["height"] > 40, names[i]
        for other in boxes[:i]:
            is_beside = one["x"] >= other["x"] + other["width"] - 1
            is_below = one["y"] >= other["y"] + other["height"] - 1
            assert is_beside or is_below, names[i]


@pytest.mark.parametrize("mode", MODES)
def test_text_can_be_read_at_every_depth(mode: str, demo: str, visit: Visits) -> None:
    """Deep tokens were dark on dark; two depths could not be told apart without colour vision."""
    seen = opened(visit, demo, 1280, mode)
    answered(seen, 24)
    for text in seen.page.locator(TEXTS).all():
        if text.is_visible() and not text.is_disabled():
            ink, paper = text.evaluate(_BEHIND)
            assert contrast(ink, paper) >= 4.5, text.evaluate("e => e.outerHTML")
    token, lights = seen.page.locator(".token").first, []
    for step in range(17):
        token.evaluate("(e, at) => e.style.setProperty('--at', at)", step / 16)
        ink, paper = token.evaluate(_BEHIND)
        assert contrast(ink, paper) >= 4.5, step
        lights.append(contrast(paper, (0, 0, 0)))
    # One way only: also without colours deeper is darker, and in the dark lighter.
    assert lights == sorted(lights, reverse=mode == "light")
    assert max(lights) / min(lights) > 1.8


@pytest.mark.parametrize("width", [360, 1280])
def test_the_tooltip_stays_in_the_window(width: int, demo: str, visit: Visits) -> None:
    """The tooltip of a token at the edge was cut off, or widened the page."""
    seen = opened(visit, demo, width, "light")
    answered(seen)
    for i in range(0, 60, 6):
        seen.page.locator(".token").nth(i).hover()
        tip = seen.page.locator("#tip").bounding_box()
        assert tip is not None
        assert tip["x"] >= 0
        assert tip["x"] + tip["width"] <= width
        assert 0 <= tip["y"] <= 900 - tip["height"]
    seen.picture(f"tip-{width}")


def test_everything_has_a_name_and_can_be_reached(demo: str, visit: Visits) -> None:
    """A slider was read out as "slider"; the page could be used with a mouse alone."""
    seen = opened(visit, demo, 1280, "light")
    fields = seen.page.locator("input:visible, textarea:visible, button:visible")
    names = fields.evaluate_all(
        "all => all.map(e => e.labels?.[0]?.textContent || e.ariaLabel || e.textContent)"
    )
    assert len(names) == len(set(names))
    assert all(name.strip() for name in names)
    seen.page.locator("#prompt").focus()
    seen.page.keyboard.press("Control+Enter")
    expect(seen.page.locator("#told")).to_contain_text("Ended")
    reached = set()
    for _ in range(fields.count() + 2):
        reached.add(seen.page.evaluate("document.activeElement.id"))
        seen.page.keyboard.press("Tab")
    wanted = fields.evaluate_all("all => all.filter(e => !e.disabled).map(e => e.id)")
    assert set(wanted) <= reached


def test_nothing_moves_for_those_who_asked_for_that(demo: str, visit: Visits) -> None:
    """Bars slid although the reader's system asks for no motion."""
    moving = "document.querySelectorAll('.track > span')[0]"
    read = f"getComputedStyle({moving}).transitionDuration"
    for asked, seconds in (("no-preference", "0.3s"), ("reduce", "0s")):
        seen = visit(demo, reduced_motion=asked).open()
        expect(seen.page.locator(".track > span").first).to_be_attached()
        assert seen.page.evaluate(read) == seconds
