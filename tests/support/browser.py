"""Chromium, and pages in it that are watched: what they ask for and what they complain about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package `playwright`")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium; skips where there is none.

    To be left before other tests run: the loop behind Playwright's synchronous calls occupies the thread.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium in the PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser, url: str, *, expected: tuple[str, ...] = (), **settings: Any) -> Iterator[Page]:
    """A page in a fresh profile, opened at `url`.

    At the end nothing may have been asked of another host than url's, and the console may hold no errors or
    warnings but those that contain one of `expected`.
    """
    origin = "/".join(url.split("/")[:3]) + "/"
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    elsewhere: list[str] = []
    complaints: list[str] = []

    def asked(request: Request) -> None:
        if not request.url.startswith(origin):
            elsewhere.append(request.url)

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    context.on("request", asked)
    page = context.new_page()
    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    assert elsewhere == []
    assert [text for text in complaints if not any(words in text for words in expected)] == []
