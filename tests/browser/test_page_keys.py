"""The page of a server with keys: the form, the reload, a key that no longer holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

pytest.importorskip("playwright", reason="needs rlt-core[browser-tests]")
from playwright.sync_api import Route, expect

from rlt_core.server.keys import ApiKeys
from tests.browser.kit import Visit, echoing

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
Visits = Callable[..., Visit]
KEY = "the-key-of-this-page"
REFUSED = ("status of 401",)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with echoing(tmp_path_factory.mktemp("chat"), keys=ApiKeys([KEY])) as url:
        yield url


def enter(seen: Visit, key: str) -> None:
    """Types a key into the form."""
    seen.page.get_by_label("This server asks for an API key.").fill(key)
    seen.page.get_by_role("button", name="Enter").click()


def test_a_key_opens_the_page_until_the_tab_is_closed(guarded: str, visit: Visits) -> None:
    """With a key the page was a 401, its scripts were, or each reload asked again."""
    seen = visit(guarded, allowed=REFUSED)
    seen.page.goto(seen.url)
    expect(seen.page.locator("#send")).to_have_count(0)
    enter(seen, "not-" + KEY)
    expect(seen.page.get_by_role("alert")).to_have_text("This key is not known.")
    enter(seen, KEY)
    expect(seen.page.locator("#send")).to_be_enabled()
    seen.ask()
    seen.page.reload()
    expect(seen.page.locator("#send")).to_be_enabled()
    seen.ask()
    assert KEY not in str(seen.page.context.cookies())
    assert all(KEY not in request.url for request in seen.requests)
    # The cookie went with a restart of the server: the tab still has the key.
    seen.page.context.clear_cookies()
    seen.page.reload()
    expect(seen.page.locator("#send")).to_be_enabled()


def test_another_tab_asks_for_the_key(guarded: str, visit: Visits) -> None:
    """A second tab had the cookie and no key, and said nothing but 401."""
    seen = visit(guarded, allowed=REFUSED)
    seen.page.goto(seen.url)
    enter(seen, KEY)
    expect(seen.page.locator("#send")).to_be_enabled()
    other = seen.page.context.new_page()
    other.goto(seen.url)
    expect(other.get_by_role("alert")).to_contain_text("asks for an API key")
    expect(other.locator("#send")).to_be_disabled()
    other.get_by_label("API key").fill(KEY)
    other.get_by_role("button", name="Use it").click()
    expect(other.locator("#send")).to_be_enabled()
    expect(other.locator("#problem")).to_be_hidden()


def test_without_cookies_the_form_says_so(guarded: str, visit: Visits) -> None:
    """The form and the page sent a browser without cookies round and round."""
    seen = visit(guarded, allowed=REFUSED)
    seen.page.route(seen.url, _answer_without_cookie)
    seen.page.goto(seen.url)
    enter(seen, KEY)
    expect(seen.page.get_by_role("alert")).to_contain_text("needs a cookie")
    count = len(seen.requests)
    seen.page.wait_for_timeout(500)
    assert len(seen.requests) == count


def _answer_without_cookie(route: Route) -> None:
    """Asks for the browser, which then never sees the cookie."""
    sent = {name: value for name, value in route.request.headers.items() if name != "host"}
    found = httpx.get(route.request.url, headers=sent)
    headers = {n: v for n, v in found.headers.items() if n != "set-cookie"}
    route.fulfill(status=found.status_code, headers=headers, body=found.content)
