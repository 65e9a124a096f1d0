"""The dashboard in a browser: what it shows, how it is used, and what it survives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import chromium, sync_api, visit
from tests.support.dashboard_server import EMPTY, Answer, DashboardServer, snapshot

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

expect = sync_api.expect
expect.set_options(timeout=30_000)  # for a machine that is busy

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
GONE = ("ERR_CONNECTION_REFUSED",)  # what Chromium writes in the console when nobody answers

MIXED = Answer(
    [
        [("Two ", False), ("drafted ", True), ("words", True)],
        [(", one ", False)],
        [("not: 🙂\n", True), ("<b>end</b>", False)],
    ]
)
"""Marks that change within a chunk and between chunks, more than ASCII, and what is no markup here."""

Open = Callable[..., AbstractContextManager["Page"]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def server() -> Iterator[DashboardServer]:
    server = DashboardServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def opened(browser: Browser, server: DashboardServer) -> Open:
    """Opens the page of `server`: with opened(color_scheme="dark") as page."""
    return lambda **settings: visit(browser, server.url, **settings)


def live(page: Page) -> None:
    expect(page.locator("#state")).to_have_text("live")


def send(page: Page, prompt: str = "Hello") -> None:
    live(page)
    page.get_by_role("textbox", name="Prompt").fill(prompt)
    page.get_by_role("button", name="Send").click()


def ended(page: Page) -> None:
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")


def accepted(page: Page) -> str:
    return "".join(page.locator("#answer .accepted").all_text_contents())


def figure(page: Page, panel: str, name: str) -> str:
    """The figure of this name in the panel with this title."""
    area = page.get_by_role("region", name=panel, exact=True)
    return (
        area.locator("dl > div", has=page.locator("dt").get_by_text(name, exact=True))
        .locator("dd")
        .inner_text()
    )


def drawn(page: Page, chart: str, look: str = "main") -> str:
    """A chart's line, as the path it is drawn by."""
    return page.locator(f"#chart-{chart} path.{look}").get_attribute("d") or ""


def sideways(page: Page) -> int:
    """Pixels by which the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


# What it shows


def test_figures_and_charts_appear(opened: Open) -> None:
    with opened() as page:
        live(page)
        last = snapshot()["history"][-1]
        expect(page.locator("#now-speed")).to_have_text(f"{last['tokens_per_second']:.1f}")
        assert figure(page, "Now", "acceptance rate") == f"{last['acceptance_rate']:.0%}"
        assert figure(page, "Now", "α") == f"{last['alpha']:.2f}"
        assert (figure(page, "Now", "running"), figure(page, "Now", "waiting")) == ("2", "1")
        assert (figure(page, "Since the start", "requests"), figure(page, "Since the start", "τ")) == (
            "1,284",
            "3.19",
        )
        for chart in ("speed", "rate", "alpha", "load"):
            assert drawn(page, chart).count("L") > 500
        assert drawn(page, "rate", "limit").count("L") > 500  # the break-even
        assert page.locator("#chart-depth rect.column").count() == 8
        expect(page.locator("#about")).to_have_text("0.1.0, up for 3 h 12 min")
        rows = page.locator("#models tbody tr")
        assert rows.nth(0).inner_text().split("\t")[:4] == [
            "qwen2.5-1.5b-instruct",
            "● on",
            "auto",
            "adaptive",
        ]
        assert rows.nth(1).inner_text().split("\t")[:4] == ["smollm2-135m-instruct", "○ off", "ngram", "5"]
        assert page.locator("#running tbody tr").count() == 2
        expect(page).to_have_title(re.compile("tokens/s · taslak"))


def test_lines_have_holes_where_nothing_was_drafted(opened: Open) -> None:
    with opened() as page:
        live(page)
        assert drawn(page, "rate").count("M") == 2
        assert drawn(page, "speed").count("M") == 1


def test_the_time_shown_can_be_chosen(opened: Open) -> None:
    with opened() as page:
        live(page)
        page.get_by_text("1 min", exact=True).click()
        expect(page.locator("#chart-speed figcaption")).to_contain_text("in the last minute")
        assert drawn(page, "speed").count("L") == 60
        assert page.locator("#chart-speed .times text").all_text_contents()[0] == "now"


def test_depths_of_another_model(opened: Open) -> None:
    with opened() as page:
        live(page)
        page.locator("#depth-model").select_option("smollm2-135m-instruct")
        expect(page.locator("#chart-depth figcaption")).to_have_text(
            "Accepted: 25% of 200 tokens at depth 1."
        )
        assert page.locator("#chart-depth rect.column").count() == 1


def test_every_chart_is_told_in_words_and_in_a_table(opened: Open) -> None:
    with opened() as page:
        live(page)
        charts = page.get_by_role("img")
        assert charts.count() == 5
        for chart in charts.all():
            words = page.locator(f"#{chart.get_attribute('aria-describedby')}")
            assert chart.get_attribute("aria-label")
            assert re.search(r"\d", words.inner_text())
        expect(page.locator("#chart-rate figcaption")).to_contain_text("Break-even is 33%: drafting pays.")
        for details in page.locator("figure details").all():
            details.locator("summary").press("Enter")
            expect(details.locator("tbody tr").nth(1)).to_be_visible()
        cells = page.locator("#chart-depth tbody tr").nth(0).locator("td")
        assert cells.all_text_contents() == ["1", "19,500", "15,596", "80%"]
        newest = page.locator("#chart-load tbody tr").nth(0).locator("td").all_text_contents()
        assert newest == ["0 s", str(snapshot()["history"][-1]["running"]), "0"]


def test_the_pointer_reads_a_chart(opened: Open) -> None:
    with opened() as page:
        live(page)
        chart = page.get_by_role("img", name="Acceptance rate over time")
        width = chart.evaluate("e => e.clientWidth")
        chart.hover(position={"x": width - 10, "y": 40})
        expect(page.locator("#chart-rate .legend")).to_have_attribute("data-at", "0 s ago")
        expect(page.locator("#chart-rate .legend")).to_contain_text("break-even 33%")
        page.mouse.move(0, 0)
        expect(page.locator("#chart-rate .legend")).to_have_text("acceptance ratebreak-even")


def test_monitor_events_open_ones_first(opened: Open) -> None:
    with opened() as page:
        live(page)
        first, second = page.locator("#events > li").all()
        expect(first).to_contain_text("Below break-even")
        expect(first).to_contain_text("open")
        assert first.locator("ul li").all_text_contents() == snapshot()["events"][1]["causes"]
        expect(second).to_contain_text("all tasks")
        expect(second).to_contain_text("over after 15 min")


def test_a_new_event_is_said_once_and_many_are_folded(opened: Open, server: DashboardServer) -> None:
    old = snapshot()["events"][0]
    server.data["events"] = [{**old, "id": i} for i in range(20)]
    with opened() as page:
        expect(page.locator("#events > li")).to_have_count(8)
        expect(page.locator("#news")).to_have_text("")
        page.get_by_role("button", name="Show all 20").click()
        expect(page.locator("#events > li")).to_have_count(20)
        server.data["events"] = [*server.data["events"], {**snapshot()["events"][1], "id": 99}]
        expect(page.get_by_role("status").first).to_have_text(
            "Monitor: acceptance rate of ngram is 0.21, drafting pays from 0.33 on."
        )


def test_a_server_that_has_done_nothing_yet(opened: Open, server: DashboardServer) -> None:
    server.data = snapshot(**EMPTY, models=[])
    with opened() as page:
        live(page)
        assert figure(page, "Now", "acceptance rate") == "–"
        assert figure(page, "Since the start", "α") == "–"
        assert page.get_by_text("Nothing measured yet").count() == 4
        expect(page.locator("#chart-depth figcaption")).to_have_text("Nothing drafted yet.")
        expect(page.locator("#running-none")).to_be_visible()
        expect(page.locator("#events-words")).to_contain_text("Nothing to report")


def test_rates_that_are_null_throughout(opened: Open, server: DashboardServer) -> None:
    for point in server.data["history"]:
        point.update(acceptance_rate=None, alpha=None, break_even=None)
    with opened() as page:
        live(page)
        expect(page.locator("#chart-rate figcaption")).to_have_text(
            "Nothing measured in the last 10 minutes."
        )
        assert page.locator("#chart-rate text.empty").count() == 1
        assert page.locator("#chart-speed text.empty").count() == 0


# Trying a prompt


def test_accepted_tokens_are_marked_and_the_outcome_is_told(opened: Open, server: DashboardServer) -> None:
    server.answer = MIXED
    with opened() as page:
        send(page, "Say two words")
        ended(page)
        assert page.locator("#answer").text_content() == MIXED.text()
        assert accepted(page) == MIXED.text(accepted=True)
        assert [part.text_content() for part in page.locator("#answer > span:not(.accepted)").all()] == [
            "Two ", ", one ", "<b>end</b>",
        ]  # fmt: skip
        lined = page.locator("#answer .accepted").first.evaluate(
            "e => getComputedStyle(e).textDecorationLine"
        )
        assert lined == "underline"  # not by colour alone
        expect(page.locator(".try .legend")).to_contain_text("drafted and accepted")
        outcome = {
            name: figure(page, "Try a prompt", name)
            for name in ("passes", "τ", "acceptance rate", "speed-up")
        }
        assert outcome == {"passes": "4", "τ": "3.25", "acceptance rate": "75%", "speed-up": "1.90×"}
        assert re.fullmatch(r"[\d.,]+", figure(page, "Try a prompt", "tokens/s"))
        assert re.fullmatch(r"[\d.]+ s", figure(page, "Try a prompt", "first token after"))
        words = page.locator("#out-words").inner_text()
        for told in ("13 tokens", "9 of 12 drafted", "ngram with γ 3", "coupled", "pass 80%", "seed 1234"):
            assert told in words


def test_what_is_chosen_is_sent(opened: Open, server: DashboardServer) -> None:
    with opened() as page:
        live(page)
        page.locator("#model").select_option("smollm2-135m-instruct")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Max tokens").fill("17")
        page.get_by_label("Seed").fill("5")
        page.get_by_role("switch", name="Speculation").uncheck()
        send(page, "Line one\nline two")
        ended(page)
    assert server.questions() == [
        {
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": "Line one\nline two"}],
            "temperature": 0,
            "max_tokens": 17,
            "seed": 5,
            "speculation": {"off": True, "flags": True},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_a_seed_is_left_out_until_it_is_kept(opened: Open, server: DashboardServer) -> None:
    with opened() as page:
        send(page)
        ended(page)
        page.get_by_role("button", name="Keep this seed").click()
        expect(page.get_by_label("Seed")).to_have_value("1234")
        send(page)
        ended(page)
    first, second = server.questions()
    assert "seed" not in first
    assert second["seed"] == 1234


def test_values_that_make_no_sense_are_not_sent(opened: Open, server: DashboardServer) -> None:
    with opened() as page:
        send(page, "")
        page.get_by_label("Temperature").fill("-1")
        send(page, "Hello")
        expect(page.locator("#temperature:invalid")).to_have_count(1)
        page.get_by_label("Temperature").fill("0.75")
        send(page, "Hello")
        ended(page)
    assert [question["temperature"] for question in server.questions()] == [0.75]


def test_stop_keeps_what_came_and_tells_the_server(opened: Open, server: DashboardServer) -> None:
    server.answer = Answer(MIXED.chunks, endless=True)
    with opened() as page:
        send(page)
        expect(page.locator("#answer")).to_have_text(MIXED.text(), use_inner_text=False)
        stop = page.get_by_role("button", name="Stop")
        expect(stop).to_be_focused()  # it took the place of the button that was pressed
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
        stop.press("Enter")
        ended(page)
        expect(page.get_by_role("button", name="Send")).to_be_focused()
        assert page.locator("#answer").text_content() == MIXED.text()
        expect(page.locator("#out-words")).to_have_text("Stopped by you.")
        assert server.disconnected.wait(30)
        server.answer = Answer([[("Again.", True)]])
        send(page)
        ended(page)
        assert page.locator("#answer").text_content() == "Again."


@pytest.mark.parametrize("key", ["Control+Enter", "Meta+Enter"])
def test_a_key_sends(opened: Open, server: DashboardServer, key: str) -> None:
    with opened() as page:
        live(page)
        prompt = page.get_by_role("textbox", name="Prompt")
        prompt.fill("Hello")
        prompt.press("Enter")
        assert server.questions() == []
        prompt.press(key)
        expect(page.locator("#answer")).to_have_text("Hi.")
    assert [question["messages"][0]["content"] for question in server.questions()] == ["Hello\n"]


def test_marks_that_do_not_fit_the_text_are_not_trusted(opened: Open) -> None:
    with opened() as page:
        live(page)
        stream = (
            'data: {"choices": [{"delta": {"content": "whole"}}], '
            '"speculation": {"pieces": [["who", true]]}}\n\n'
            'data: {"choices": [{"delta": {"content": " text"}}]}\r\n\r\n'
            ": a comment\n\n"
            "data: [DONE]\n\n"
        )
        page.route(
            "**/chat/completions", lambda route: route.fulfill(body=stream, content_type="text/event-stream")
        )
        send(page)
        ended(page)
        assert page.locator("#answer").text_content() == "whole text"
        assert page.locator("#answer .accepted").count() == 0
        assert figure(page, "Try a prompt", "passes") == "–"


# What goes wrong


def test_an_error_is_shown_as_a_sentence(opened: Open, server: DashboardServer) -> None:
    with opened(expected=("400", "502")) as page:
        live(page)
        page.route("**/api/dashboard", lambda route: route.fulfill(json=server.data))
        server.refusal = (
            400,
            '{"error": {"message": "max_tokens is 9, at most 8 fit", "type": "invalid_request_error"}}',
        )
        send(page)
        expect(page.get_by_role("alert")).to_have_text("max_tokens is 9, at most 8 fit.")
        server.refusal = (502, "<html>")
        send(page)
        expect(page.get_by_role("alert")).to_have_text("The server answered 502 Bad Gateway.")
        server.refusal = None
        send(page)
        ended(page)
        expect(page.get_by_role("alert")).to_have_text("")


def test_an_error_inside_the_stream_keeps_what_came(opened: Open, server: DashboardServer) -> None:
    server.answer = Answer([[("So far", True)]], error="The model ran out of memory")
    with opened() as page:
        send(page)
        expect(page.get_by_role("alert")).to_have_text("The model ran out of memory.")
        ended(page)
        assert page.locator("#answer").text_content() == "So far"


def test_an_answer_that_breaks_off_is_no_whole_one(opened: Open, server: DashboardServer) -> None:
    server.answer = Answer([[("So far", True)]], broken=True)
    with opened() as page:
        send(page)
        expect(page.get_by_role("alert")).to_contain_text("broke off")
        ended(page)


def test_the_server_is_gone_and_comes_back(opened: Open, server: DashboardServer) -> None:
    with opened(expected=GONE) as page:
        live(page)
        server.stop()
        expect(page.locator("#trouble-text")).to_have_text("The server does not answer.")
        expect(page.locator("#trouble-next")).to_contain_text("Trying again")
        expect(page.locator("#now-speed")).to_have_text("49.7")  # what was known stays
        expect(page.get_by_role("status").first).to_have_text("The server does not answer.")
        send_button = page.get_by_role("button", name="Send")
        page.get_by_role("textbox", name="Prompt").fill("Hello")
        send_button.click()
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
        server.start()
        page.get_by_role("button", name="Try now").click()
        live(page)
        expect(page.locator("#trouble")).to_be_hidden()


def test_it_comes_back_by_itself_too_with_longer_and_longer_waits(
    opened: Open, server: DashboardServer
) -> None:
    with opened(expected=GONE) as page:
        live(page)
        server.stop()
        expect(page.locator("#state")).to_have_text("no connection")
        server.start()
        live(page)
        waits = page.evaluate(
            "import('./static/poll.js').then(({ backOff }) => [1, 2, 3, 4, 5, 6, 60].map(backOff))"
        )
        assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_nothing_is_asked_while_nobody_looks(opened: Open, server: DashboardServer) -> None:
    def asked() -> int:
        return server.paths().count("/api/dashboard")

    with opened() as page:
        page.clock.install()
        page.reload()
        live(page)
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.evaluate("fetch('api/dashboard').then((response) => response.text())")  # after any under way
        before = asked()
        page.clock.run_for(60_000)
        assert asked() == before
        server.data["waiting"] = 7
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator("#now-waiting")).to_have_text("7")


@pytest.mark.parametrize("body", ["<html>log in</html>", "[]", '{"history": null}'])
def test_an_answer_of_something_else_is_told(opened: Open, server: DashboardServer, body: str) -> None:
    server.refusal = (200, body)
    with opened(expected=("SyntaxError", "TypeError")) as page:
        expect(page.locator("#trouble-text")).to_contain_text("could not be read")
        server.refusal = None
        page.get_by_role("button", name="Try now").click()
        live(page)


def test_the_api_key_is_asked_for_and_stays_in_the_tab(opened: Open, server: DashboardServer) -> None:
    server.key = "sk-right"
    with opened(expected=("401",)) as page:
        dialog = page.get_by_role("dialog", name="API key")
        key = dialog.get_by_label("Key", exact=True)
        expect(dialog).to_contain_text("asks for an API key")
        expect(key).to_be_focused()
        key.fill("ключ")
        key.press("Enter")
        expect(dialog).to_contain_text("letters, digits")
        key.fill("sk-wrong")
        key.press("Enter")
        expect(dialog).to_contain_text("did not accept")
        key.fill("sk-right")
        key.press("Enter")
        expect(dialog).to_be_hidden()
        send(page)
        ended(page)
        assert page.evaluate(
            "[Object.values(sessionStorage), Object.keys(localStorage), document.cookie]"
        ) == [
            ["sk-right"],
            [],
            "",
        ]
        page.reload()
        live(page)
        page.get_by_role("button", name="Forget the key").click()
        expect(dialog).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0
    keys = [asked.authorization for asked in server.asked if asked.path.startswith(("/api", "/v1"))]
    assert keys[:3] == [None, "Bearer sk-wrong", "Bearer sk-right"]
    assert not any("sk-right" in path for path in server.paths())


def test_without_the_key_the_page_waits_for_it(opened: Open, server: DashboardServer) -> None:
    server.key = "sk-right"
    with opened(expected=("401",)) as page:
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#trouble-text")).to_have_text("The server asks for an API key.")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.get_by_role("button", name="Enter the key").click()
        page.get_by_label("Key", exact=True).fill("sk-right")
        page.get_by_role("button", name="Use the key").click()
        live(page)


def test_hostile_names_and_texts_stay_text(opened: Open, server: DashboardServer) -> None:
    data = server.data
    for entry in (*data["models"], *data["running"], *data["events"]):
        entry.update(
            {key: HOSTILE for key, value in entry.items() if isinstance(value, str) and key != "kind"}
        )
    data["events"][0].update(kind=HOSTILE, task=HOSTILE, causes=[HOSTILE])
    data["version"] = HOSTILE
    data["depths"] = {HOSTILE: data["depths"]["smollm2-135m-instruct"], f"{HOSTILE} 2": []}
    server.answer = Answer([[(HOSTILE, True), (HOSTILE, False)]])
    server.answer.outcome.update(method=HOSTILE, verify=HOSTILE)
    with opened(expected=("400",)) as page:
        send(page, HOSTILE)
        ended(page)
        assert page.locator("#answer").text_content() == 2 * HOSTILE
        page.route("**/api/dashboard", lambda route: route.fulfill(json=data))
        server.refusal = (400, '{"error": {"message": "<img src=x onerror=alert(1)>"}}')
        send(page)
        expect(page.get_by_role("alert")).to_have_text("<img src=x onerror=alert(1)>.")
        assert page.locator("img, b, script:not([src])").count() == 0
        expect(page.locator("#models td").first).to_have_text(HOSTILE)
        expect(page.locator("#events")).to_contain_text(HOSTILE)
        expect(page.locator("#depth-model option").first).to_have_text(HOSTILE)
        assert "tokens/s" in page.title()
        assert sideways(page) == 0


# How it is used


@pytest.mark.parametrize(
    "settings", [PHONE, {"viewport": {"width": 320, "height": 600}}, {}], ids=["390", "320", "1280"]
)
def test_nothing_scrolls_sideways(opened: Open, server: DashboardServer, settings: dict[str, Any]) -> None:
    server.answer = Answer([[("a" * 500, True), ("\n" + "b " * 500, False)]])
    server.data["models"][0].update(name="m" * 120, draft="d" * 120)
    server.data["events"][0]["message"] = "e" * 200
    with opened(**settings) as page:
        send(page)
        ended(page)
        for summary in page.locator("summary").all():
            summary.click()
        assert sideways(page) == 0
        inside = page.locator("main *").evaluate_all(
            "nodes => nodes.filter((n) => n.checkVisibility()"
            " && !n.closest('.scroll, .answer, .unseen, .list thead, svg')"
            " && n.getBoundingClientRect().right > innerWidth + 0.5).map((n) => n.outerHTML.slice(0, 80))"
        )
        assert inside == []


def luminance(page: Page, selector: str, property: str) -> float:
    """Relative, 0 = black and 1 = white, as WCAG 2 defines it."""
    parts = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{property}")
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", parts)[:3])
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_follow_the_system_and_the_toggle(opened: Open, server: DashboardServer) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        with opened(color_scheme=scheme) as page:
            live(page)
            for now in (scheme, other):
                paper = luminance(page, "body", "backgroundColor")
                assert paper > 0.8 if now == "light" else paper < 0.05
                page.get_by_role("button", name=other.title() if now == scheme else scheme.title()).click()
            page.get_by_role("button", name=other.title()).click()
            page.reload()  # the choice is kept
            live(page)
            paper = luminance(page, "body", "backgroundColor")
            assert paper > 0.8 if other == "light" else paper < 0.05


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened: Open, server: DashboardServer, scheme: str) -> None:
    server.answer = MIXED
    with opened(color_scheme=scheme) as page:
        send(page)
        ended(page)
        for text, ground in [
            (".words", ".panel"),
            ("dt", ".panel"),
            ("#about", "body"),
            ("#answer .accepted", "#answer .accepted"),
            ("#send", "#send"),
            ("summary", ".panel"),
            (".open .badge", ".panel"),
            (".choice :checked + span", ".choice :checked + span"),
        ]:
            light, dark = sorted(
                (luminance(page, text, "color"), luminance(page, ground, "backgroundColor")), reverse=True
            )
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_the_keyboard_reaches_the_prompt_and_send(opened: Open) -> None:
    with opened() as page:
        live(page)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the prompt")).to_be_focused()
        reached = []
        for _ in range(20):
            page.keyboard.press("Tab")
            focused = page.evaluate(
                "[document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]"
            )
            reached.append(focused[0])
            if focused[0] and not page.locator("[type=radio]:focus").count():
                assert focused[1] != "none", focused
            if focused[0] == "send":
                break
        assert reached[-7:] == ["prompt", "model", "temperature", "max-tokens", "seed", "speculation", "send"]
        page.get_by_role("link", name="Skip to the prompt").press("Enter")
        expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()


def test_every_control_has_a_name(opened: Open) -> None:
    with opened() as page:
        live(page)
        for control in page.locator("input, select, textarea").all():
            assert control.evaluate("e => e.labels[0]?.textContent.trim()")
        expect(page.locator("#answer")).to_have_attribute("aria-live", "polite")


def test_it_works_behind_a_path(browser: Browser) -> None:
    server = DashboardServer(prefix="/behind/a/proxy/")
    server.answer = MIXED
    server.start()
    try:
        with visit(browser, server.url) as page:
            send(page)
            ended(page)
            assert accepted(page) == MIXED.text(accepted=True)
        assert [path for path in server.paths() if not path.startswith(server.prefix)] == []
    finally:
        server.stop()


def test_what_is_being_read_is_left_alone(opened: Open, server: DashboardServer) -> None:
    """Answers each second must not take away a selection, an open table or a choice."""
    with opened() as page:
        live(page)
        page.locator("#model").select_option("smollm2-135m-instruct")
        page.locator("#chart-speed summary").click()
        page.locator("#models td").first.click(click_count=3)
        before = page.evaluate("String(getSelection())")
        assert "qwen2.5" in before
        server.data = snapshot(waiting=7)
        expect(page.locator("#now-waiting")).to_have_text("7")
        assert page.evaluate("String(getSelection())") == before
        assert page.locator("#chart-speed details").get_attribute("open") is not None
        expect(page.locator("#model")).to_have_value("smollm2-135m-instruct")
