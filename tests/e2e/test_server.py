"""The server through OpenAI's own client, on a tiny random model."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")

import httpx2 as httpx
import openai

from taslak.server.app import Server
from taslak.server.settings import Settings
from tests.support.checkpoint import write_model
from tests.support.serving import make_server, served, tiny_language_model

MODEL = "tiny"
ASK = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "tiny", context=512)


@pytest.fixture(scope="module")
def server(folder: Path) -> Server:
    return make_server(folder, price_per_hour=2.0)


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with served(server) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def chat(client: openai.OpenAI, messages: Any = ASK, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def complete(client: openai.OpenAI, prompt: Any = "abcabc", **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 24, **options}
    return client.completions.create(model=MODEL, prompt=prompt, **options)


def streamed(chunks: Any) -> tuple[dict[int, str], dict[int, str], list[Any]]:
    """Text and finish reason by choice, and all chunks."""
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    kept = []
    for chunk in chunks:
        kept.append(chunk)
        for choice in chunk.choices:
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + (piece or "")
            if choice.finish_reason is not None:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    return texts, ends, kept


def refused(client: openai.OpenAI, **body: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=3, extra_body=body)
    assert error.value.status_code == 400
    assert set(error.value.body) == {"message", "type", "param", "code"}
    assert error.value.type == "invalid_request_error"
    return error.value


def test_models_are_listed(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert models[0].owned_by == "taslak"
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("another/one")
    assert error.value.code == "model_not_found"


def test_a_chat_answer_is_what_the_library_gives(client: openai.OpenAI, folder: Path) -> None:
    direct = tiny_language_model(folder).generate(ASK, max_tokens=24)
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == direct.text
    assert answer.choices[0].finish_reason == direct.finish_reason
    assert answer.usage.prompt_tokens == direct.prompt_tokens
    assert answer.usage.completion_tokens == len(direct.ids)
    assert answer.usage.total_tokens == direct.prompt_tokens + len(direct.ids)


def test_stream_and_whole_say_the_same(client: openai.OpenAI) -> None:
    for ask in (chat, complete):
        whole = ask(client, n=3, temperature=1.0, seed=5)
        texts, ends, chunks = streamed(
            ask(client, n=3, temperature=1.0, seed=5, stream=True, stream_options={"include_usage": True})
        )
        contents = [c.text if hasattr(c, "text") else c.message.content for c in whole.choices]
        assert [texts[i] for i in range(3)] == contents
        assert [ends[i] for i in range(3)] == [c.finish_reason for c in whole.choices]
        assert len(set(contents)) == 3
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_usage_has_none(client: openai.OpenAI) -> None:
    _, _, chunks = streamed(chat(client, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"


def test_c12_a_seed_repeats_a_choice_and_neighbours_change_nothing(client: openai.OpenAI) -> None:
    """The same seeded request alone, beside others, and again; unseeded ones differ."""
    alone = chat(client, temperature=1.0, seed=11, n=2)
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(chat, client, temperature=1.0) for _ in range(6)]
        again = pool.submit(chat, client, temperature=1.0, seed=11, n=2)
        texts = [c.message.content for c in again.result().choices]
        free = [other.result().choices[0].message.content for other in others]
    assert texts == [c.message.content for c in alone.choices]
    assert texts[0] != texts[1]
    assert len(set(free)) == 6
    told = chat(client, temperature=1.0)
    repeat = chat(client, temperature=1.0, seed=told.speculation["seed"])
    assert repeat.choices[0].message.content == told.choices[0].message.content


def test_c25_eight_clients_at_once_get_the_serial_answers(client: openai.OpenAI) -> None:
    asks = [[{"role": "user", "content": f"Say {'ab' * i} {i}"}] for i in range(8)]
    serial = [chat(client, ask).choices[0].message.content for ask in asks]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda ask: chat(client, ask).choices[0].message.content, asks))
    assert together == serial


@pytest.mark.parametrize("stream", [True, False])
def test_c26_a_client_that_goes_frees_its_memory(
    url: str, client: openai.OpenAI, server: Server, stream: bool
) -> None:
    worker = next(iter(server.catalogue)).worker
    body = {
        "model": MODEL,
        "messages": ASK,
        "max_tokens": 480,
        "ignore_eos": True,
        "stream": stream,
        "temperature": 0,
        "n": 8,
    }
    before = chat(client).choices[0].message.content
    emitted = worker.tokens
    ended = threading.Event()

    def leave() -> None:
        with httpx.Client(timeout=30) as http:
            try:
                with http.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=0.4) as response:
                    for _ in response.iter_lines():
                        break  # the connection closes with the block
            except httpx.TimeoutException:
                pass
        ended.set()

    threading.Thread(target=leave).start()
    end = time.monotonic() + 20
    while worker.running < 8:
        assert time.monotonic() < end
        time.sleep(0.002)
    assert ended.wait(20)
    while worker.running or worker.waiting:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert worker.tokens - emitted < 8 * 400, "they ended by themselves"
    assert chat(client).choices[0].message.content == before


def test_c27_logprobs_are_those_of_plain_decoding(client: openai.OpenAI) -> None:
    for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
        options |= {"max_tokens": 100, "extra_body": {"ignore_eos": True}}
        drafted = chat(client, logprobs=True, top_logprobs=4, **options)
        plain = chat(
            client,
            logprobs=True,
            top_logprobs=4,
            **{**options, "extra_body": {"ignore_eos": True, "speculation": {"off": True}}},
        )
        assert drafted.speculation["accepted"] > 0 or options["temperature"]
        assert plain.speculation["drafted"] == 0
        ours, theirs = drafted.choices[0].logprobs.content, plain.choices[0].logprobs.content
        assert len(ours) == drafted.usage.completion_tokens
        assert [one.token for one in ours] == [one.token for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [t.token for t in one.top_logprobs] == [t.token for t in other.top_logprobs]
            assert len(one.top_logprobs) == 4
            best = one.top_logprobs[0]
            assert best.logprob >= one.logprob - 1e-9
            if options["temperature"] == 0:
                assert best.token == one.token
        text = b"".join(bytes(one.bytes) for one in ours).decode(errors="replace")
        assert text.startswith(drafted.choices[0].message.content[:5])
    _, _, chunks = streamed(chat(client, logprobs=True, top_logprobs=4, stream=True))
    told = [one for c in chunks for choice in c.choices if choice.logprobs for one in choice.logprobs.content]
    whole = chat(client, logprobs=True, top_logprobs=4).choices[0].logprobs.content
    assert [one.logprob for one in told] == [one.logprob for one in whole]


def test_completion_logprobs(client: openai.OpenAI) -> None:
    told = complete(client, logprobs=3).choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset)
    assert told.text_offset[0] == 0
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())


def test_c28_code_points_are_never_split(client: openai.OpenAI) -> None:
    """Answers of emoji alone, of which the tiny model has a token for each of four bytes."""
    options = {"temperature": 1.0, "seed": 2, "max_tokens": 80, "extra_body": {"regex": "[🙂-🙏]{6}é"}}
    whole = complete(client, **options)
    assert re.fullmatch("[🙂-🙏]{6}é", whole.choices[0].text)
    assert whole.choices[0].finish_reason == "stop"
    texts, _, chunks = streamed(complete(client, stream=True, **options))
    assert texts[0] == whole.choices[0].text
    pieces = [choice.text for chunk in chunks for choice in chunk.choices if choice.text]
    assert len(pieces) > 1
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_answers_keep_to_a_form(client: openai.OpenAI) -> None:
    """JSON, a schema, a regex, a grammar: the same text with speculation and without."""
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    formats: list[tuple[dict[str, Any], Any]] = [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
            json.loads,
        ),
        ({"regex": "(yes|no), (yes|no)"}, lambda text: re.fullmatch("(yes|no), (yes|no)", text)),
        ({"grammar": 'start: ("ab" | "cd")+ "."'}, lambda text: re.fullmatch(r"(ab|cd)+\.", text)),
        ({"response_format": {"type": "text"}}, lambda text: True),
    ]
    for body, reads in formats:
        for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 7}):
            given = {"max_tokens": 120, **options}
            plain = chat(client, extra_body={**body, "speculation": {"off": True}}, **given)
            drafted = chat(client, extra_body=body, **given)
            assert drafted.choices == plain.choices
            if drafted.choices[0].finish_reason == "stop":
                assert reads(drafted.choices[0].message.content)
    named = chat(client, max_tokens=120, temperature=1.0, seed=7, extra_body=formats[0][0])
    assert json.loads(named.choices[0].message.content)["name"] in ("Ada", "Bob")
    assert (
        chat(client, max_tokens=8, response_format={"type": "json_object"}).choices[0].message.content[0]
        in "{ \n"
    )
    for body in (
        {"regex": "("},
        {"grammar": "start: nowhere"},
        {"regex": "a", "grammar": 'start: "a"'},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
    ):
        refused(client, **body)


def test_c29_a_partial_stop_string_at_the_end_is_shown(client: openai.OpenAI) -> None:
    text = complete(client).choices[0].text
    tail = text[-2:]
    stop = tail + "\x00never"
    texts, ends, _ = streamed(complete(client, stop=stop, stream=True))
    assert texts[0] == text
    assert ends[0] == "length"
    cut = complete(client, stop=[text[5:8], "never"])
    assert cut.choices[0].text == text[: text.index(text[5:8])]
    assert cut.choices[0].finish_reason == "stop"


def test_penalties_biases_and_cuts_reach_the_model(client: openai.OpenAI, folder: Path) -> None:
    direct = tiny_language_model(folder)
    for options, extra in (
        ({"presence_penalty": 1.5, "frequency_penalty": 0.5}, {}),
        ({"logit_bias": {"65": 100}}, {}),
        ({"temperature": 0.8, "seed": 4, "top_p": 0.5}, {"top_k": 7, "min_p": 0.01}),
        ({}, {"repetition_penalty": 1.3, "min_tokens": 10}),
    ):
        given = {**options, **extra}
        if "logit_bias" in given:
            given["logit_bias"] = {65: 100.0}
        expected = direct.generate(ASK, **{"max_tokens": 24, "temperature": 0, **given})
        assert chat(client, extra_body=extra, **options).choices[0].message.content == expected.text


def test_prompts_of_every_kind(client: openai.OpenAI) -> None:
    one = complete(client, "abc").choices[0].text
    ids = complete(client, [64, 65, 66]).choices[0].text
    many = complete(client, ["abc", "xyz"], n=2, seed=1, temperature=1.0)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.usage.prompt_tokens == 6
    assert complete(client, [[64, 65, 66], [64, 65, 66]]).choices[1].text == ids
    assert complete(client, "abc", echo=True).choices[0].text == "abc" + one
    texts, _, _ = streamed(complete(client, ["abc", "xyz"], echo=True, stream=True))
    assert texts[0] == "abc" + one
    assert texts[1].startswith("xyz")


def test_content_in_parts_and_developer_messages(client: openai.OpenAI) -> None:
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]}
    ]
    assert chat(client, parts).choices == chat(client).choices
    system, developer = (
        chat(client, [{"role": role, "content": "Be short."}, *ASK]) for role in ("system", "developer")
    )
    assert system.choices == developer.choices


def test_what_is_not_supported_is_refused(client: openai.OpenAI) -> None:
    for body, named in (
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"audio": {}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"nonsense": 1}, "nonsense"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "type"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 5}, "max_tokens"),
        ({"logit_bias": {"ten": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "99999"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"seed": "x"}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"speculation": {"gamma": 99}}, "gamma"),
        ({"speculation": {"method": "eagle"}}, "eagle"),
        ({"speculation": {"method": "nonsense"}}, "nonsense"),
        ({"speculation": {"fast": True}}, "fast"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"speculation": {"off": True, "gamma": 3}}, "off"),
        ({"logit_bias": {"1" * 5000: 1}}, "token id"),
        ({"regex": "a", "logit_bias": {"64": -100}, "max_tokens": 3}, "banned"),
    ):
        assert named in refused(client, **body).message + str(refused(client, **body).param)
    with pytest.raises(openai.BadRequestError):
        complete(client, "")
    with pytest.raises(openai.BadRequestError, match="1000 prompts"):
        complete(client, ["x"] * 1000)
    with pytest.raises(openai.BadRequestError):
        complete(client, "x", echo=True, logprobs=1)
    with pytest.raises(openai.BadRequestError, match="suffix"):
        complete(client, "x", suffix="y")
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, "x" * 600)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        complete(client, [99999])


def test_nulls_and_what_asks_for_nothing_are_taken(client: openai.OpenAI) -> None:
    plain = chat(client)
    body = {"tools": None, "tool_choice": "none", "store": False, "seed": None, "stop": None, "user": "u1"}
    assert chat(client, extra_body=body).choices == plain.choices


def test_speculation_is_the_callers_choice(client: openai.OpenAI) -> None:
    plain = chat(client, extra_body={"speculation": {"off": True}})
    assert plain.speculation["method"] == "plain"
    assert plain.speculation["drafted"] == 0
    assert plain.speculation["acceptance_rate"] is None
    for gamma in (1, 3, 8):
        told = chat(client, extra_body={"speculation": {"gamma": gamma, "method": "suffix", "flags": True}})
        assert told.choices == plain.choices
        made = told.speculation
        assert made["gamma"] == gamma
        assert made["drafted"] > 0
        assert made["acceptance_rate"] == made["accepted"] / made["drafted"]
        assert made["alpha"] == made["accepted"] / made["passes"]
        assert sum(made["accepted_tokens"][0]) == made["accepted"]
        assert len(made["accepted_tokens"][0]) == told.usage.completion_tokens
    assert (
        chat(client, extra_body={"speculation": {"verify": "rejection"}}).speculation["verify"] == "rejection"
    )


def test_streams_tell_which_text_was_drafted(client: openai.OpenAI) -> None:
    texts, _, chunks = streamed(chat(client, stream=True, extra_body={"speculation": {"flags": True}}))
    pieces = [piece for c in chunks for piece in (c.model_extra.get("speculation") or {}).get("pieces", [])]
    assert "".join(text for text, _ in pieces) == texts[0]
    assert {drafted for _, drafted in pieces} == {True, False}
    last = chunks[-1].speculation
    assert last["accepted"] == sum(last["accepted_tokens"][0])


def test_turns_of_a_conversation_reuse_the_cache(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "A long beginning. " * 6}]
    first = chat(client, messages)
    again = chat(client, messages)
    assert again.usage.prompt_tokens_details.cached_tokens >= 64
    assert again.choices == first.choices


def test_health_metrics_and_dashboard(url: str, client: openai.OpenAI) -> None:
    chat(client, extra_body={"task": "greeting"})
    time.sleep(1.2)  # a sample
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/ready").status_code == 200
    text = httpx.get(f"{url}/metrics").text
    for name in (
        "taslak_requests_total",
        "taslak_requests_running",
        "taslak_requests_waiting",
        "taslak_prompt_tokens_total",
        "taslak_cached_prompt_tokens_total",
        "taslak_generation_tokens_total",
        "taslak_time_to_first_token_seconds_bucket",
        "taslak_time_per_output_token_seconds_bucket",
        "taslak_request_seconds_bucket",
        "taslak_cost_per_million_tokens",
        "taslak_spec_decode_num_drafts_total",
        "taslak_spec_decode_num_draft_tokens_total",
        "taslak_spec_decode_num_accepted_tokens_total",
        "taslak_spec_decode_num_accepted_tokens_per_pos_total",
        "taslak_spec_decode_acceptance_rate",
        "taslak_spec_decode_alpha",
        "taslak_speculation_on",
        "taslak_monitor_events_open",
        "taslak_prefix_cache_bytes",
    ):
        assert f"{name}{{" in text, name
    figures = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }
    by = '{method="suffix",model="tiny"}'
    drafted = figures[f"taslak_spec_decode_num_draft_tokens_total{by}"]
    accepted = figures[f"taslak_spec_decode_num_accepted_tokens_total{by}"]
    assert 0 < accepted <= drafted
    assert 0 < figures[f"taslak_spec_decode_acceptance_rate{by}"] <= 1
    at = [value for key, value in figures.items() if "per_pos_total" in key]
    assert sum(at) == accepted
    time.sleep(1.2)
    shown = httpx.get(f"{url}/api/dashboard").json()
    assert shown["models"][0]["name"] == MODEL
    assert shown["totals"]["accepted"] == accepted
    assert shown["totals"]["tokens"] == figures['taslak_generation_tokens_total{model="tiny"}']
    assert sum(depth["accepted"] for depth in shown["depths"][MODEL]) == accepted
    assert shown["history"]
    assert "Hello" not in json.dumps(shown)


def test_the_page_keeps_to_itself(url: str) -> None:
    page = httpx.get(url)
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers
    asked = httpx.options(
        f"{url}/v1/models", headers={"origin": "https://else.where", "access-control-request-method": "GET"}
    )
    assert "access-control-allow-origin" not in asked.headers


def test_bodies_that_are_none(url: str) -> None:
    surrogate = b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}'
    answer = httpx.post(
        f"{url}/v1/chat/completions", content=surrogate, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert "UTF-8" in answer.json()["error"]["message"]
    for content, kind in (
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"\xff\xfe", "application/json"),
    ):
        answer = httpx.post(f"{url}/v1/chat/completions", content=content, headers={"content-type": kind})
        assert answer.status_code == 400, content
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "Traceback" not in answer.text
    assert httpx.get(f"{url}/v1/chat/completions").status_code == 405
    assert "error" in httpx.get(f"{url}/nowhere").json()


def test_a_server_for_its_own_machine_has_its_own_names(folder: Path) -> None:
    server = make_server(folder, hosts=("127.0.0.1", "::1", "localhost"))
    with served(server) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        port = url.rpartition(":")[2]
        for name in (f"localhost:{port}", f"[::1]:{port}", "127.0.0.1"):
            assert httpx.get(f"{url}/health", headers={"host": name}).status_code == 200
        for name in (f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil", ""):
            refused = httpx.get(f"{url}/api/dashboard", headers={"host": name})
            assert refused.status_code in (400, 403), name


def test_keys_bounds_and_origins(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "prompts.jsonl"
    server = make_server(
        folder,
        api_key="secret",
        max_body_bytes=2000,
        max_prompt_tokens=50,
        origins=("https://our.page",),
        collect=kept,
    )
    with served(server) as url:
        for key in ("wrong", "", "secre", "secrets"):
            with pytest.raises(openai.AuthenticationError) as error:
                chat(openai.OpenAI(base_url=f"{url}/v1", api_key=key or "x", max_retries=0))
            assert error.value.code == "invalid_api_key"
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/api/dashboard").status_code == 401
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(url).status_code == 200
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0)
        chat(client, extra_body={"task": "hello"})
        complete(client, "abc")
        with pytest.raises(openai.BadRequestError, match="50"):
            complete(client, "x" * 60)
        with pytest.raises(openai.APIStatusError) as large:
            complete(client, "x" * 3000)
        assert large.value.status_code == 413
        chunked = httpx.post(
            f"{url}/v1/completions",
            content=iter([b"x" * 1500, b"x" * 1500]),
            headers={"authorization": "Bearer secret", "content-type": "application/json"},
        )
        assert chunked.status_code == 413
        allowed = httpx.get(f"{url}/health", headers={"origin": "https://our.page"})
        assert allowed.headers["access-control-allow-origin"] == "https://our.page"
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert rows == [{"messages": ASK, "task": "hello"}, {"prompt": "abc", "raw": True}]
    assert kept.stat().st_mode & 0o077 == 0


def test_a_full_queue_is_429_and_says_when(folder: Path) -> None:
    server = make_server(folder, max_running=1, max_waiting=0)
    with served(server) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        stream = chat(client, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as error:
            chat(client)
        assert int(error.value.response.headers["retry-after"]) >= 1
        stream.close()


def test_two_models_and_a_new_drafter(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", seed=5, context=256)
    server = Server(Settings(admin=True))
    options = {"dtype": "float32", "exact": True, "gamma": 3}
    server.load("one", str(folder), method="suffix", **options)
    server.load("two", str(other), method="ngram", **options)
    with served(server) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list().data] == ["one", "two"]

        def ask(model: str) -> Any:
            return client.completions.create(model=model, prompt="abab", max_tokens=20, temperature=0)

        first = {name: ask(name) for name in ("one", "two")}
        assert first["one"].choices != first["two"].choices
        changed = httpx.post(
            f"{url}/admin/drafter",
            json={"model": "one", "draft": str(folder), "method": "draft-model"},
            timeout=60,
        )
        assert changed.status_code == 200, changed.text
        after = ask("one")
        assert after.choices == first["one"].choices
        assert after.speculation["drafted_by"] == ["draft-model"]
        assert after.speculation["acceptance_rate"] == 1.0  # it drafts for itself
        broken = httpx.post(f"{url}/admin/drafter", json={"model": "one", "draft": "/nowhere"}, timeout=60)
        assert broken.status_code in (400, 404)
        assert ask("one").speculation["drafted_by"] == ["draft-model"]


def test_c22_a_drafter_with_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    """Where drafters change it stays allowed, and is no matter for what needs no draft model."""
    foreign = write_model(tmp_path / "foreign", seed=5, context=256, extra="Ψ")
    server = Server(Settings(admin=True))
    options = {"dtype": "float32", "exact": True, "gamma": 3, "cross_vocab": True}
    server.load("one", str(folder), str(foreign), method="cross-vocab", **options)
    with served(server) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

        def ask() -> Any:
            return client.completions.create(model="one", prompt="abab", max_tokens=20, temperature=0)

        first = ask()
        assert first.speculation["drafted_by"] == ["cross-vocab"]
        for draft, method in ((None, "suffix"), (str(foreign), "slem")):
            change = {"model": "one", "draft": draft, "method": method}
            changed = httpx.post(f"{url}/admin/drafter", json=change, timeout=60)
            assert changed.status_code == 200, changed.text
            assert changed.json()["method"] == method
            assert ask().choices == first.choices


def test_admin_is_closed_unless_asked_for(url: str) -> None:
    assert httpx.post(f"{url}/admin/drafter", json={"model": MODEL}).status_code == 404


def test_stopping_lets_an_answer_end(folder: Path) -> None:
    server = make_server(folder)
    texts: list[str] = []
    with served(server) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        whole = complete(client, max_tokens=120, extra_body={"ignore_eos": True}).choices[0]
        stream = complete(client, stream=True, max_tokens=120, extra_body={"ignore_eos": True})
        reader = threading.Thread(target=lambda: texts.append(streamed(stream)[0][0]))
        reader.start()
        end = time.monotonic() + 20
        while not next(iter(server.catalogue)).worker.running and not texts:
            assert time.monotonic() < end
    reader.join(30)
    assert texts == [whole.text]
