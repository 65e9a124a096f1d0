"""The page as the real server serves it: its policy, its key, its figures, an answer with drafted text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")
pytest.importorskip("playwright", reason="needs the package `playwright`")

import httpx2 as httpx
from playwright.sync_api import expect

from tests.support.browser import chromium, visit
from tests.support.checkpoint import write_model
from tests.support.serving import make_server, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("page") / "tiny", context=512)


def test_an_answer_with_its_accepted_text(browser: Browser, folder: Path) -> None:
    server = make_server(folder)
    prompt = "abab abab abab"
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 64,
        "speculation": {"flags": True},
    }
    with served(server) as url, visit(browser, url) as page:
        expect(page.locator("#state")).to_have_text("live")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Max tokens").fill("64")
        page.get_by_role("textbox", name="Prompt").fill(prompt)
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false", timeout=30_000)
        whole = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).json()
        said = whole["choices"][0]["message"]["content"]
        assert page.locator("#answer").inner_text().split() == said.split()
        accepted = page.locator("#answer .accepted").all_text_contents()
        assert bool(accepted) == (whole["speculation"]["accepted"] > 0)
        time.sleep(2.5)  # two samples
        expect(page.get_by_role("region", name="Since the start", exact=True)).to_contain_text("2")


def test_the_key_is_asked_for(browser: Browser, folder: Path) -> None:
    server = make_server(folder, api_key="secret")
    with served(server) as url, visit(browser, url, expected=("401",)) as page:
        page.get_by_label("Key", exact=True).fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("live")
