"""The page at `/`: its files, what they are sent with, who gets them, and what it asks."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from rlt_core.server.app import create_app
from rlt_core.server.keys import ApiKeys
from tests.app_kit import KEY, client_of, logged, run, scripted, settings
from tests.fresh import Built

PAGE = Path(__file__).resolve().parent.parent / "rlt_core" / "server" / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
BROWSER = {"Accept": "text/html,*/*"}
WITH_KEY = {"Authorization": f"Bearer {KEY}"}


def app_of(**changes: object) -> FastAPI:
    return create_app(scripted(), settings(**changes))


def parts() -> list[str]:
    """Paths of the files that the page loads."""
    return [f"/page/{file.name}" for file in sorted(PAGE.iterdir()) if file.suffix != ".html"]


def directives(answer: httpx.Response) -> dict[str, str]:
    """The Content-Security-Policy by directive."""
    policy = answer.headers["content-security-policy"].split(";")
    return {name: value for name, _, value in (part.strip().partition(" ") for part in policy)}


def test_files_have_their_types_and_are_asked_for_again() -> None:
    """A script came as plain text and did not run; an old page ran against a new server."""

    async def scene() -> None:
        async with client_of(app_of()) as client:
            for path in ["/", *parts()]:
                found = await client.get(path)
                name = "index.html" if path == "/" else path.rpartition("/")[2]
                assert found.content == (PAGE / name).read_bytes()
                assert found.headers["content-type"] == TYPES[Path(name).suffix]
                assert found.headers["cache-control"] == "private, no-cache"
                assert found.headers["x-content-type-options"] == "nosniff"
                known = {"If-None-Match": found.headers["etag"]}
                again = await client.get(path, headers=known)
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == found.headers["etag"]
            tags = {(await client.get(path)).headers["etag"] for path in ["/", *parts()]}
            assert len(tags) == 1 + len(parts())
            for path in ("/page/none.js", "/page/index.html", "/page/key_form.html", "/page/"):
                assert (await client.get(path)).status_code == 404

    run(scene())


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    """A text of the model that got in as HTML could run a script, or send the key away."""

    async def scene() -> None:
        async with client_of(app_of()) as client:
            for path in ["/", *parts()]:
                policy = directives(await client.get(path))
                assert policy["default-src"] == "'none'"
                assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect")} == {
                    "'self'"
                }
                assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
                assert "unsafe" not in str(policy)

    run(scene())


def test_the_form_runs_its_own_script_alone() -> None:
    """The form's policy allowed any inline script, or not its own."""

    async def scene() -> None:
        async with client_of(app_of(), key=None) as client:
            form = await client.get("/", headers=BROWSER)
        assert form.status_code == 401
        assert form.headers["cache-control"] == "no-store"
        assert form.headers["www-authenticate"].startswith("Bearer")
        policy = directives(form)
        assert policy["default-src"] == "'none'"
        for tag in ("script", "style"):
            inner = re.findall(f"<{tag}>(.*?)</{tag}>", form.text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inner[0].encode()).digest()).decode()
            assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
            assert len(inner) == 1

    run(scene())


def test_the_page_names_no_other_host_and_holds_nothing_inline() -> None:
    """A font or a script came from another host; a style in an attribute was refused."""
    for file in PAGE.iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}|@import|url\(", text), file
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "document.write" not in text
    page = (PAGE / "index.html").read_text("utf-8")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script>", page)


def test_the_cookie_opens_the_page_and_nothing_else() -> None:
    """A cookie that opened the model could be used by other pages, and read on other ports."""

    async def scene() -> None:
        app = app_of()
        async with client_of(app, key=None) as client:
            entered = await client.get("/", headers={**BROWSER, **WITH_KEY})
            cookie = entered.headers["set-cookie"]
            assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
            assert KEY not in cookie
            assert client.cookies
            for path in ["/", *parts()]:
                assert (await client.get(path, headers=BROWSER)).status_code == 200
            for path in ("/v1/models", "/v1/engine", "/metrics", "/version", "/openapi.json"):
                assert (await client.get(path)).status_code == 401
            assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 401
            assert (await client.post("/")).status_code == 401
            wrong = {**BROWSER, "Authorization": "Bearer another-key"}
            assert (await client.get("/", headers=wrong)).status_code == 401

    run(scene())


@pytest.mark.parametrize("value", ["", "x", '"', "rlt", "=; ;", "ÿ"])
def test_other_cookies_open_nothing(value: str) -> None:
    """Any cookie of the right name let a browser in; a broken one was a 500."""

    async def scene() -> None:
        async with client_of(app_of(), key=None) as client:
            for name in ("rlt_page_80", "rlt_page_None"):
                sent = [(b"cookie", f"{name}={value}".encode("latin-1"))]
                for path in ["/", *parts()]:
                    assert (await client.get(path, headers=sent)).status_code == 401

    run(scene())


def test_a_cookie_goes_over_tls_alone_where_there_is_tls() -> None:
    """It was sent in the clear to the same host's port 80."""

    async def scene() -> None:
        async with client_of(app_of(), key=None) as client:
            plain = await client.get("/", headers=WITH_KEY)
            safe = await client.get("https://127.0.0.1/", headers=WITH_KEY)
            assert "Secure" not in plain.headers["set-cookie"]
            assert "Secure" in safe.headers["set-cookie"].split("; ")
        async with client_of(app_of(keys=ApiKeys()), key=None) as client:
            free = await client.get("/", headers=BROWSER)
            assert free.status_code == 200
            assert "set-cookie" not in free.headers

    run(scene())


def test_the_engine_says_bounds_and_state() -> None:
    """The page guessed the model's depth and thresholds; before the model was loaded it broke."""

    async def scene() -> None:
        llm = scripted()
        async with client_of(create_app(llm, settings(max_tokens=99))) as client:
            before = (await client.get("/v1/engine")).json()
            assert (before["ready"], before["facts"]) == (False, None)
            assert "not started" in before["reason"]
            async with llm:
                found = (await client.get("/v1/engine")).json()
                assert (found["ready"], found["reason"]) == (True, "")
                facts = found["facts"]
                assert (facts["loops"], facts["max_depth"], facts["max_tokens"]) == (4, 4, 99)
                assert (facts["exit_policy"], facts["has_chat"]) == ("gate", False)
                param = facts["exit_params"][0]
                # The checkpoint's own default, not the policy's.
                assert (param["name"], param["default"]) == ("exit_threshold", 0.3)
                assert (param["minimum"], param["maximum"]) == (0.0, 1.0)
                state = found["state"]
                assert (state["num_slots"], state["slots_used"]) == (8, 0)

    run(scene())


def test_a_page_that_is_open_does_not_fill_the_log() -> None:
    """An open page wrote a line a second; and then its refusals were silent, too."""

    async def scene() -> None:
        async with client_of(app_of()) as client:
            with logged() as lines:
                await client.get("/v1/engine")
                await client.get("/v1/engine", headers={"Authorization": "Bearer wrong-key"})
                await client.get("/version")
        assert [(x["path"], x["status"]) for x in lines] == [("/v1/engine", 401), ("/version", 200)]

    run(scene())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_holds_the_page(built: Built) -> None:
    """The page was in the checkout and not in what users install."""
    names = built.wheel_names("rlt-core")
    files = {f"rlt_core/server/page/{file.name}" for file in PAGE.iterdir()}
    assert "rlt_core/server/page/app.js" in files
    assert files <= names
    assert files <= built.sdist_names("rlt-core")
