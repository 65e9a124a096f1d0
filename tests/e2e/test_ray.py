"""Two replicas on a real Ray cluster of this machine: the same answers, and no request lost.

The tests share one cluster and run in the order of the file: the last ones replace and kill replicas.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")
pytest.importorskip("ray", reason="needs the extra [ray]")

import httpx2 as httpx
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from taslak.errors import UserError
from taslak.server.address import bind
from taslak.server.ray.options import Options
from taslak.server.ray.run import deploy
from taslak.server.ray.session import by_preference, session_of
from tests.e2e.conftest import Taslak
from tests.support.checkpoint import write_model
from tests.support.process import serving
from tests.support.serving import make_server, served

pytestmark = pytest.mark.slow

KEY = "secret"
PER_REQUEST = {"date", "server", "x-request-id"}
"""Headers that are no one's answer: the time, who speaks HTTP, and a number Ray gives."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("ray") / "tiny", context=512)


def options(folder: Path, **changed: Any) -> Options:
    given = {
        "model": {"tiny": str(folder)},
        "method": "suffix",
        "gamma": 4,
        "dtype": "float32",
        "exact": True,
    }
    given |= {"replicas": 2, "num_cpus": 0.5, "api_key": KEY, "max_body_bytes": 4000, "price_per_hour": 1.0}
    return Options(**(given | changed))


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the cluster's door."""
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
    with ExitStack() as ending, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASLAK_HOME", str(tmp_path_factory.getbasetemp() / "home"))
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)  # else Ray keeps one in the user's home
        ending.callback(os.environ.pop, "RAY_AUTH_MODE", None)  # Ray sets it
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
        )
        ending.callback(ray.shutdown)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        ending.callback(serve.shutdown)
        deploy(options(folder))
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[str]:
    """Of a server of the same model without Ray."""
    with served(make_server(folder, api_key=KEY, max_body_bytes=4000)) as address:
        yield address


def send(url: str, path: str = "/v1/chat/completions", method: str = "POST", **given: Any) -> httpx.Response:
    given.setdefault("headers", {"authorization": f"Bearer {KEY}"})
    return httpx.request(method, url + path, timeout=60, **given)


def chat(text: str = "Hello there", **changed: Any) -> dict[str, Any]:
    ask = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": ask, "max_tokens": 24, "temperature": 0, **changed}


def answered(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the answer says, without what differs from call to call."""
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    response = send(url, path, json=body)
    assert response.status_code == 200, response.text
    told = response.json()
    return {"choices": told["choices"], "tokens": told["usage"]["completion_tokens"], "model": told["model"]}


def streamed(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of every chunk, joined: where a stream is cut depends on the moment."""
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    response = send(url, path, json=body | {"stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            texts[choice["index"]] = texts.get(choice["index"], "") + (piece or "")
            ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"], "")
    return [{"text": texts[index], "end": ends[index]} for index in sorted(texts)]


def figures(url: str, name: str, **labels: str) -> dict[str, float]:
    """By replica, the sum of a metric's series that carry the labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(send(url, "/metrics", "GET").text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                replica = sample.labels["replica"]
                found[replica] = found.get(replica, 0.0) + sample.value
    return found


def replicas(url: str) -> list[str]:
    return sorted(figures(url, "taslak_requests_running"))


def until(holds: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def preferring(url: str, replica: str, **changed: Any) -> dict[str, Any]:
    """A request whose session prefers this replica."""
    every = replicas(url)
    asks = (chat(f"{i} is a number. " * 6, **changed) for i in range(1000))
    return next(a for a in asks if by_preference(session_of(json.dumps(a).encode()), every)[0] == replica)


def test_answers_are_those_of_a_server_without_ray(url: str, alone: str) -> None:
    seeded = {"temperature": 1.0, "seed": 7, "n": 2}
    for body in (
        chat(),
        chat(**seeded),
        chat(logprobs=True, top_logprobs=2),
        {"model": "tiny", "prompt": "abcabc", "max_tokens": 24, "temperature": 0},
        {"model": "tiny", "prompt": ["abc", "xyz"], "max_tokens": 24, **seeded},
    ):
        assert answered(url, body) == answered(alone, body)
        assert streamed(url, body) == streamed(alone, body)


class Pieces:
    """A body of 6000 bytes that doesn't say so beforehand."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"x" * 3000
        yield b"x" * 3000


def test_other_answers_and_errors_are_the_same(url: str, alone: str) -> None:
    for path, method, given in (
        ("/", "GET", {}),
        ("/static/dashboard.js", "GET", {}),
        ("/openapi.json", "GET", {}),
        ("/health", "GET", {"headers": {}}),
        ("/ready", "GET", {"headers": {}}),
        ("/v1/models/another/one", "GET", {}),
        ("/v1/chat/completions", "GET", {}),
        ("/nowhere", "GET", {}),
        ("/metrics", "GET", {"headers": {}}),
        ("/api/dashboard", "GET", {"headers": {"authorization": "Bearer wrong"}}),
        ("/v1/chat/completions", "POST", {"json": chat(), "headers": {}}),
        ("/v1/chat/completions", "POST", {"json": chat(model="other")}),
        ("/v1/chat/completions", "POST", {"json": chat(nonsense=1)}),
        ("/v1/chat/completions", "POST", {"json": chat(temperature=-1)}),
        ("/v1/chat/completions", "POST", {"content": b"{"}),
        ("/v1/chat/completions", "POST", {"json": chat("x" * 2000)}),
        ("/v1/chat/completions", "POST", {"json": chat("x" * 5000)}),
        ("/v1/chat/completions", "POST", {"content": Pieces()}),
        ("/admin/drafter", "POST", {"json": {"model": "tiny"}}),
    ):
        ours, theirs = (send(address, path, method, **given) for address in (url, alone))
        assert ours.status_code == theirs.status_code, path
        assert ours.content == theirs.content, path
        told, expected = (
            {k: v for k, v in answer.headers.items() if k not in PER_REQUEST} for answer in (ours, theirs)
        )
        assert told == expected, path
    models = [send(address, "/v1/models", "GET").json()["data"][0] for address in (url, alone)]
    assert {**models[0], "created": 0} == {**models[1], "created": 0}


def test_a_conversation_stays_with_one_replica_and_finds_its_turns(url: str) -> None:
    messages = [{"role": "user", "content": "A long beginning of a talk. " * 4}]
    before = figures(url, "taslak_prompt_tokens_total")
    cached = []
    for _ in range(3):
        told = send(url, json=chat(messages=messages)).json()
        cached.append(told["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages += [
            {"role": "assistant", "content": told["choices"][0]["message"]["content"]},
            {"role": "user", "content": "Go on, please, and say more of that."},
        ]
    after = figures(url, "taslak_prompt_tokens_total")
    assert len([name for name in after if after[name] > before.get(name, 0.0)]) == 1
    assert cached[0] == 0
    assert 64 <= cached[1] < cached[2]


def test_sessions_go_where_they_prefer_and_use_both_replicas(url: str) -> None:
    every = replicas(url)
    assert len(every) == 2
    for replica in every * 2:
        before = figures(url, "taslak_generation_tokens_total")
        assert answered(url, preferring(url, replica, max_tokens=5))["tokens"] == 5
        after = figures(url, "taslak_generation_tokens_total")
        assert {name: after[name] - before[name] for name in every} == {
            n: 5.0 * (n == replica) for n in every
        }


@pytest.mark.parametrize("stream", [True, False])
def test_c26_a_client_that_goes_frees_its_sequences(url: str, stream: bool) -> None:
    body = json.dumps(chat("Goes", max_tokens=480, ignore_eos=True, n=8, stream=stream)).encode()
    before = answered(url, chat())
    gone = sum(figures(url, "taslak_requests_total", status="499").values())
    tokens = sum(figures(url, "taslak_generation_tokens_total").values())

    def running() -> float:
        return sum(figures(url, "taslak_requests_running").values())

    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        until(lambda: running() == 8)
    until(lambda: running() == 0)
    until(lambda: sum(figures(url, "taslak_requests_total", status="499").values()) == gone + 1)
    assert sum(figures(url, "taslak_generation_tokens_total").values()) - tokens < 8 * 480
    assert answered(url, chat()) == before


def test_metrics_and_dashboard_show_both_replicas(url: str) -> None:
    every = replicas(url)
    for replica in every:
        answered(url, preferring(url, replica))
    text = send(url, "/metrics", "GET").text
    for family in text_string_to_metric_families(text):
        assert {sample.labels["replica"] for sample in family.samples} <= set(every)
    for name in (
        "taslak_requests_total",
        "taslak_prompt_tokens_total",
        "taslak_generation_tokens_total",
        "taslak_time_to_first_token_seconds_count",
        "taslak_spec_decode_num_draft_tokens_total",
        "taslak_cost_per_million_tokens",
    ):
        assert sorted(figures(url, name)) == every, name
    shown = send(url, "/api/dashboard", "GET").json()
    tokens = sum(figures(url, "taslak_generation_tokens_total").values())
    assert shown["totals"]["tokens"] == tokens == shown["models"][0]["tokens"]
    assert shown["totals"]["requests"] == sum(figures(url, "taslak_requests_total").values())
    assert shown["models"][0]["cost_per_million_tokens"] > 0
    accepted = sum(figures(url, "taslak_spec_decode_num_accepted_tokens_total").values())
    assert sum(depth["accepted"] for depth in shown["depths"]["tiny"]) == accepted > 0
    until(lambda: send(url, "/api/dashboard", "GET").json()["history"])
    assert "Hello" not in json.dumps(shown)


def test_a_replica_that_dies_takes_no_later_request_with_it(url: str) -> None:
    doomed, other = replicas(url)
    long = preferring(url, doomed, max_tokens=300, ignore_eos=True)
    expected = answered(url, long)
    results: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: results.append(answered(url, long)))
    asking.start()
    until(lambda: figures(url, "taslak_requests_running")[doomed] == 1)
    (name,) = [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"].endswith(f"#{doomed}")
    ]
    ray.kill(ray.get_actor(name, namespace="serve"))
    assert answered(url, long) == expected  # a later one
    asking.join()
    assert results == [expected]  # nothing of it had been sent: another replica answered
    assert send(url, "/ready", "GET").status_code == 200
    until(lambda: len(replicas(url)) == 2)  # Ray Serve has put another in its place
    assert doomed not in replicas(url)
    assert other in replicas(url)


def test_a_redeployment_under_load_loses_no_request_and_changes_no_answer(url: str, folder: Path) -> None:
    bodies = [chat(), chat(temperature=1.0, seed=3), {"model": "tiny", "prompt": "abab", "seed": 1}]
    expected = [(answered(url, body), streamed(url, body)) for body in bodies]
    before = replicas(url)
    over = threading.Event()
    failures: list[BaseException] = []
    counts = [0] * len(bodies)

    def ask(i: int) -> None:
        try:
            while not over.is_set():
                assert answered(url, bodies[i]) == expected[i][0]
                assert streamed(url, bodies[i]) == expected[i][1]
                counts[i] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    try:
        deploy(options(folder, method="ngram", gamma=2))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert min(counts) > 0
    until(lambda: len(replicas(url)) == 2)
    assert not set(before) & set(replicas(url))
    told = send(url, json=chat()).json()
    assert (told["speculation"]["method"], told["speculation"]["gamma"]) == ("ngram", 2)


def test_what_cannot_be_loaded_is_told_and_the_old_replicas_go_on(url: str, folder: Path) -> None:
    before = answered(url, chat())
    with pytest.raises(UserError, match="nowhere"):
        deploy(options(folder, model={"tiny": "/nowhere/at-all"}))
    assert answered(url, chat()) == before


def test_taslak_serve_with_ray(folder: Path) -> None:
    """Its own cluster, a stream that is let end at SIGTERM, and exit code 0."""
    drafting = ("--dtype", "float32", "--method", "suffix", "--gamma", "3")
    with serving(f"tiny={folder}", *drafting, "--ray", "--replicas", "1", seconds=300) as (server, url):
        body = chat(max_tokens=300, ignore_eos=True, stream=True)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        last = json.loads(rest[-2].removeprefix("data: "))
        assert last["choices"][0]["finish_reason"] == "length"
        assert server.end() == 0


def test_mistakes_are_one_line(taslak: Taslak, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("a cluster was started for a mistake"))
    for args, named in (
        (("--replicas", "2"), "--ray"),
        (("--max-replicas", "2"), "--ray"),
        (("--ray", "--replicas", "0"), "--replicas"),
        (("--ray", "--replicas", "1000"), "room for"),
        (("--ray", "--replicas", "3", "--max-replicas", "2"), "max_replicas"),
        (("--ray", "--admin"), "admin"),
        (("--ray", "--host", "203.0.113.7"), "203.0.113.7"),
        (("--ray", "--ray-address", "127.0.0.1:1"), "127.0.0.1:1"),
    ):
        result = taslak("serve", str(folder), *args, "--no-record")
        assert result.code == 2, result
        assert named in result.error_lines[-1]
