"""`taslak serve` as a process: it says where it listens, answers, and ends as it should on each signal."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")

import httpx2 as httpx

from tests.e2e.conftest import Taslak
from tests.support.checkpoint import write_model
from tests.support.process import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("process") / "tiny", context=512)


def test_sigterm_lets_a_stream_end_and_exits_with_zero(folder: Path) -> None:
    options = ("--dtype", "float32", "--method", "suffix", "--gamma", "3")
    with serving(f"tiny={folder}", *options) as (server, url):
        body = {
            "model": "tiny",
            "prompt": "abab secret words",
            "max_tokens": 300,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        tokens = 0
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        last = json.loads(rest[-2].removeprefix("data: "))
        assert last["choices"][0]["finish_reason"] == "length"
        tokens = last["speculation"]["accepted"] + last["speculation"]["passes"]
        assert tokens >= 300
        assert server.end() == 0
        logged = [json.loads(line) for line in server.lines if line.startswith("{")]
        told = [entry for entry in logged if entry["logger"] == "taslak.requests"]
        assert len(told) == 1
        assert told[0]["status"] == 200
        assert told[0]["tokens"] == 300
        assert "secret" not in "".join(server.lines)


def test_sighup_loads_the_drafter_anew(folder: Path) -> None:
    options = ("--dtype", "float32", "--draft", str(folder), "--method", "draft-model", "--gamma", "3")
    with serving(f"tiny={folder}", *options) as (server, url):
        body = {"model": "tiny", "prompt": "abab", "max_tokens": 20, "temperature": 0}
        before = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("loaded anew")
        after = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert after["choices"] == before["choices"]
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 0


def test_mistakes_are_one_line(taslak: Taslak, folder: Path, tmp_path: Path) -> None:
    for args, named in (
        (("a=x", "a=y"), "a"),
        ((str(folder), "--draft", "b=c"), "b"),
        (("a=x", "b=y", "--draft", "z"), "whose"),
        ((str(folder), "--max-running", "0"), "max-running"),
        ((str(folder), "--timeout", "0"), "timeout"),
        ((str(folder), "--api-key", " "), "key"),
        ((str(folder), "--collect", str(tmp_path)), str(tmp_path)),
        (("nowhere/at-all",), "nowhere"),
        ((str(folder), "--dtype", "float32", "--method", "suffix", "--host", "203.0.113.7"), "203.0.113.7"),
    ):
        result = taslak("serve", *args, "--no-record")
        assert result.code == 2, result
        assert named in result.error_lines[-1]
        assert result.error_lines[-1].startswith("error: ")


def test_without_ray_its_extra_is_named(
    taslak: Taslak, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("taslak.server.ray")]:
        monkeypatch.delitem(sys.modules, name)
    result = taslak("serve", str(folder), "--ray", "--no-record")
    assert result.code == 2
    assert "taslak[ray]" in result.error_lines[-1]
