"""The server under load, over real HTTP on this machine, asked by this process; beside llama.cpp's server.

    python benchmarks/serving.py [--only throughput|latency|soak] [--minutes 5] [--rounds 3] [--no-llama]

The default model, greedy. Throughput: answers of 128 tokens, one stream and eight at once, both servers
running and asked in turns; nobody keeps prompts in his cache, and each round has its own.
Latency: the time to the first token alone, of four arrivals at once, and of arrivals at random (Poisson)
at half of the capacity measured here. Soak: sixteen clients, one in ten of whom leaves in the middle, with
malformed bodies, stop strings and seeds among what they send; every finished greedy answer is compared with
the one given alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from harness import HELD_OUT, finish, machine, requirement

from taslak import _native
from taslak.bench.prompts import as_text, in_turns, read
from taslak.models.loading import DEFAULT_PACK, cache_home

TOKENS = 128
STREAMS = 8
SHORT = 64
"""Tokens of an answer whose first one is waited for."""


@dataclass
class Told:
    """One answer as its client saw it: seconds from its request on.

    first: until the first text; gaps: between chunks
    """

    tokens: int = 0
    first: float | None = None
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, Any], leave_after: int = 0) -> Told:
    """Stream one answer; `leave_after` chunks of text the connection is closed."""
    told = Told()
    started = before = time.perf_counter()
    chunks = 0
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            if chunk.get("usage"):
                told.tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                text = choice["delta"].get("content")
                told.finish = choice.get("finish_reason") or told.finish
                if text:
                    now = time.perf_counter()
                    if told.first is None:
                        told.first = now - started
                    else:
                        told.gaps.append(now - before)
                    before = now
                    told.text += text
                    chunks += 1
            if leave_after and chunks >= leave_after:
                return told
    told.last = time.perf_counter() - started
    return told


def body_of(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": DEFAULT_PACK,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,  # the same work for everybody
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


async def together(url: str, prompts: Sequence[str], tokens: int, **more: Any) -> tuple[float, list[Told]]:
    """All at once: tokens a second in all, and the answers."""
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=64)) as client:
        started = time.perf_counter()
        told = await asyncio.gather(*(ask(client, url, body_of(p, tokens, **more)) for p in prompts))
        took = time.perf_counter() - started
    return sum(each.tokens for each in told) / took, list(told)


async def arriving(url: str, prompts: Sequence[str], rate: float, seed: int) -> list[Told]:
    """One after the other with exponential times between them, `rate` a second."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=64)) as client:
        going = []
        for prompt in prompts:
            going.append(asyncio.create_task(ask(client, url, body_of(prompt, SHORT))))
            await asyncio.sleep(chance.expovariate(rate))
        return list(await asyncio.gather(*going))


@contextmanager
def taslak_server(threads: int, *more: str) -> Iterator[tuple[str, int]]:
    """Its address and process id; it must end with 0."""
    command = [sys.executable, "-m", "taslak", "serve", DEFAULT_PACK, "--port", "0", "--no-record"]
    process = subprocess.Popen(
        [*command, "--threads", str(threads), *more],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TASLAK_API_KEY": ""},
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"http://\S+", line):
            break
    else:
        raise SystemExit("".join(lines))
    drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        yield found[0], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        drain.wait()
    if code:
        raise SystemExit(f"taslak serve ended with {code}")


@contextmanager
def llama_server(threads: int) -> Iterator[str]:
    model = next((cache_home() / "packs" / DEFAULT_PACK).glob("*.gguf"))
    command = [sys.executable, str(Path(__file__).with_name("llama_server.py")), str(model)]
    process = subprocess.Popen(
        [*command, "--threads", str(threads), "--slots", str(STREAMS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    for _ in range(600):
        try:
            if httpx.get(f"{address}/health").status_code == 200:
                break
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    try:
        yield address
    finally:
        process.kill()
        process.wait()


def resident(pid: int) -> float:
    """MiB of memory the process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(round(share * (len(ordered) - 1)), len(ordered) - 1)]


def prompts() -> Iterator[str]:
    """Of all categories in turns; each is given once."""
    for prompt in in_turns(read(HELD_OUT)):
        yield as_text(prompt.opening)


def throughput(url: str, llama: str | None, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """By side, a row a round: tokens a second in all, median seconds to the first text and between chunks."""
    ways: list[tuple[str, str, int, dict[str, Any]]] = [
        ("taslak, 1 stream, plain", url, 1, {"speculation": {"off": True}}),
        ("taslak, 1 stream", url, 1, {}),
        (f"taslak, {STREAMS} streams, plain", url, STREAMS, {"speculation": {"off": True}}),
        (f"taslak, {STREAMS} streams", url, STREAMS, {}),
    ]
    if llama is not None:
        ways += [
            ("llama.cpp, 1 stream", llama, 1, {"cache_prompt": False}),
            (f"llama.cpp, {STREAMS} streams", llama, STREAMS, {"cache_prompt": False}),
        ]
    source = prompts()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in ways}
    for number in range(rounds + 1):
        given = [next(source) for _ in range(STREAMS)]
        for name, address, count, more in ways if number % 2 else ways[::-1]:
            rate, told = asyncio.run(together(address, given[:count], TOKENS, **more))
            if number:  # the first round warms up
                gaps = [gap for each in told for gap in each.gaps]
                found[name].append(
                    {
                        "tokens_per_second": rate,
                        "first": statistics.median(each.first or 0.0 for each in told),
                        "gap": statistics.median(gaps),
                        "tokens": sum(each.tokens for each in told),
                    }
                )
                print(f"round {number}: {name}: {rate:.1f} tokens/s", flush=True)
        if number == 0:
            asyncio.run(together(url, given, TOKENS))
    return found


def latency(url: str, rate: float, count: int = 40) -> dict[str, list[float]]:
    """Seconds to the first text. rate: requests a second that the server can answer."""
    source = prompts()
    alone = []
    for _ in range(count // 2):
        _, told = asyncio.run(together(url, [next(source)], SHORT))
        alone.append(told[0].first or 0.0)
    four: list[float] = []
    for _ in range(count // 4):
        _, told = asyncio.run(together(url, [next(source) for _ in range(4)], SHORT))
        four += [each.first or 0.0 for each in told]
    told = asyncio.run(arriving(url, [next(source) for _ in range(count)], rate / 2, seed=1))
    return {"alone": alone, "four at once": four, "poisson": [each.first or 0.0 for each in told]}


@dataclass
class Soak:
    """What sixteen clients came to."""

    answered: int = 0
    compared: int = 0
    different: list[str] = field(default_factory=list)
    left: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start, MiB."""
    leaked: int = 0


MALFORMED: tuple[bytes, ...] = (
    b"{",
    b"[]",
    b'{"model": 5}',
    b'{"model": "%s", "messages": []}' % DEFAULT_PACK.encode(),
    b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "n": -1}' % DEFAULT_PACK.encode(),
    b"\xff\xfe",
)


async def soak(url: str, pid: int, minutes: float, clients: int = 16) -> Soak:
    found = Soak()
    source = list(prompts())[:40]
    chance = random.Random(3)
    bodies = []
    for number, prompt in enumerate(source):
        more: dict[str, Any] = {"ignore_eos": False}
        if number % 3 == 1:
            more["stop"] = ["\n\n", " the"]
        if number % 3 == 2:
            more |= {"temperature": 0.8, "seed": number}
        bodies.append(body_of(prompt, chance.choice([16, 48, 96]), **more))
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        serial = [await ask(client, url, body) for body in bodies]
        started = time.monotonic()
        end = started + 60 * minutes

        async def one(number: int) -> None:
            own = random.Random(number)
            while time.monotonic() < end:
                pick = own.random()
                if pick < 0.05:
                    content = own.choice(MALFORMED)
                    headers = {"content-type": "application/json"}
                    answer = await client.post(f"{url}/v1/chat/completions", content=content, headers=headers)
                    if 400 <= answer.status_code < 500:
                        found.refused += 1
                    else:
                        found.lost.append(f"a malformed body gave {answer.status_code}")
                    continue
                at = own.randrange(len(bodies))
                try:
                    if pick < 0.15:
                        await ask(client, url, bodies[at], leave_after=own.randint(1, 8))
                        found.left += 1
                        continue
                    told = await ask(client, url, bodies[at])
                except Exception as error:
                    found.lost.append(f"{type(error).__name__}: {error}")
                    continue
                found.answered += 1
                found.compared += 1
                if (told.text, told.finish, told.tokens) != (
                    serial[at].text,
                    serial[at].finish,
                    serial[at].tokens,
                ):
                    found.different.append(bodies[at]["messages"][0]["content"][:60])

        async def watch() -> None:
            while time.monotonic() < end:
                found.memory.append((time.monotonic() - started, resident(pid)))
                await asyncio.sleep(2)

        await asyncio.gather(watch(), *(one(number) for number in range(clients)))
        await asyncio.sleep(1)
        shown = (await client.get(f"{url}/api/dashboard")).json()
        found.leaked = len(shown["running"]) + shown["waiting"]
        found.memory.append((time.monotonic() - started, resident(pid)))
    return found


def growth(memory: Sequence[tuple[float, float]]) -> float:
    """Of the last quarter's median over that of the second quarter: the first one warms up."""
    span = memory[-1][0]
    second = [mib for at, mib in memory if 0.25 * span <= at < 0.5 * span]
    last = [mib for at, mib in memory if at >= 0.75 * span]
    return statistics.median(last) / statistics.median(second)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("throughput", "latency", "soak"), help="store nothing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--no-llama", action="store_true")
    given = parser.parse_args()
    threads = _native.threads()
    here = machine()
    rows: list[list[Any]] = []
    requirements = []
    raw: dict[str, Any] = {"tokens": TOKENS, "threads": threads}
    if given.only != "soak":
        with taslak_server(threads, "--prefix-cache-mib", "0") as (url, _):
            if given.no_llama:
                found = throughput(url, None, given.rounds)
            else:
                with llama_server(threads) as llama:
                    found = throughput(url, llama, given.rounds)
            raw["throughput"] = found
            medians = {
                name: {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
                for name, rounds in found.items()
            }
            for name, median in medians.items():
                rows.append([name, median["tokens_per_second"], 1e3 * median["first"], 1e3 * median["gap"]])

            def ratio(above: str, below: str) -> float:
                return statistics.median(
                    a["tokens_per_second"] / b["tokens_per_second"]
                    for a, b in zip(found[above], found[below], strict=True)
                )

            eight = f"taslak, {STREAMS} streams"
            gain = ratio(eight, "taslak, 1 stream, plain")
            requirements.append(requirement(f"{STREAMS} streams / one plain stream", "≥ 2", gain, gain >= 2))
            if not given.no_llama:
                beside = ratio(eight, f"llama.cpp, {STREAMS} streams")
                name = f"{STREAMS} streams / llama.cpp's {STREAMS}"
                requirements.append(requirement(name, "≥ 1", beside, beside >= 1))
            capacity = medians[eight]["tokens_per_second"] / SHORT
            if given.only in (None, "latency"):
                waits = latency(url, capacity)
                raw["latency"] = waits | {"capacity": capacity}
                # like with like: a long prompt waits longer alone too
                alone = percentile(waits["alone"], 0.95)
                for name, most in (("four at once", 5), ("poisson", 3)):
                    times = percentile(waits[name], 0.95) / alone
                    requirements.append(
                        requirement(
                            f"first token, p95, {name} / p95 alone", f"≤ {most}", times, times <= most
                        )
                    )
                rows += [
                    [f"first token, {name}", "", 1e3 * percentile(values, 0.95), ""]
                    for name, values in waits.items()
                ]
    if given.only in (None, "soak"):
        with taslak_server(threads) as (url, pid):
            lived = asyncio.run(soak(url, pid, given.minutes))
        raw["soak"] = asdict(lived)
        grown = growth(lived.memory)
        print(
            f"soak: {lived.answered} answered, {lived.left} left, {lived.refused} refused, "
            f"{len(lived.lost)} lost, memory {lived.memory[-1][1]:.0f} MiB",
            flush=True,
        )
        requirements += [
            requirement(
                f"soak, {given.minutes:g} min: answers unlike those given alone, of {lived.compared}",
                "0",
                len(lived.different),
                not lived.different and lived.compared > 0,
            ),
            requirement("soak: requests lost", "0", len(lived.lost), not lived.lost),
            requirement("soak: sequences left behind", "0", lived.leaked, lived.leaked == 0),
            requirement("soak: memory, last quarter / second", "≤ 1.05", grown, grown <= 1.05),
        ]
    columns = ["side", "tokens/s", "first text, ms", "between chunks, ms"]
    if given.only is not None:
        for requirement_ in requirements:
            print(requirement_)
        for row in rows:
            print(row)
        return
    finish(__file__, machine=here, columns=columns, rows=rows, requirements=requirements, raw=raw)


if __name__ == "__main__":
    main()
