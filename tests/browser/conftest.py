"""A browser for this folder, a server with the demo, and visits that are checked at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_cli_serve import started

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.kit import Visit


# Not of the session: while it is open, no other test can run an event loop in this thread.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    from tests.browser.kit import launch

    with sync_playwright() as playwright:
        with launch(playwright) as found:
            yield found


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`rlt serve` with nothing named; its URL."""
    with started(tmp_path_factory.mktemp("serve")) as (url, _):
        yield url


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Makes visits to a URL; options: those of a browser context, and `allowed` errors."""
    from tests.browser.kit import Visit

    made: list[Visit] = []

    def make(url: str, allowed: tuple[str, ...] = (), **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        made.append(Visit(context.new_page(), f"{url}/", allowed))
        return made[-1]

    yield make
    for each in made:
        each.page.context.close()
    for each in made:
        each.check()
