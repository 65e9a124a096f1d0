"""taslak beside llama.cpp and transformers: one GGUF file, the same prompts, greedy, end to end.

    python benchmarks/vs_peers.py [--repeats 3] [--tokens 128] [--llama-python …] [--before "nice -n -5"]

Qwen2.5-Coder 1.5B, its 0.5B sibling as the draft model, three prompts. Every library runs in a process of
its own (peers.py), one at a time, and answers each prompt once: nothing is replayed, llama.cpp's n-gram
caches are empty. First every setting runs once; then, for each prompt, the best setting of each library and
mode runs `--repeats` times in turns, and only those count. Tokens a second are the tokens of an answer over
the seconds from its first token to its last; "with prefill" over all seconds. Runs are logged in
results/vs_peers.runs.jsonl and taken from there when the script is started again (--fresh forgets them).

llama.cpp is the `xllamacpp` wheel: `pip install -e ".[bench]"`, or in an environment of its own, named by
--llama-python.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, finish, machine, requirement
from prompts import PROMPTS

from taslak import _native
from taslak.models.loading import cache_home, fetch, resolve
from taslak.models.tokenizer import Tokenizer

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
LOG = RESULTS / "vs_peers.runs.jsonl"
PEERS = Path(__file__).with_name("peers.py")

PLAIN_INT4, PLAIN_INT8 = "plain, int4", "plain, int8"


@dataclass(frozen=True)
class Setting:
    """One way to run one library. `mode`: what it competes as; `job`: what peers.py is told."""

    library: str
    mode: str
    name: str
    job: dict[str, Any]

    @property
    def key(self) -> str:
        return f"{self.library}: {self.name}"


def taslak_settings() -> list[Setting]:
    def one(mode: str, name: str, speculate: bool = True, **load: Any) -> Setting:
        load["dtype"] = mode.split(", ")[1]
        return Setting("taslak", mode, name, {"model": TARGET, "load": load, "speculate": speculate})

    found = [one(mode, mode, speculate=False) for mode in (PLAIN_INT4, PLAIN_INT8)]
    if "avx2" in _native.paths()[1:]:
        plain = one(PLAIN_INT4, PLAIN_INT4, speculate=False)
        name = f"{PLAIN_INT4}, AVX2"
        found.append(Setting("taslak", name, name, {**plain.job, "path": "avx2"}))
    for dtype in ("int4", "int8"):
        mode = f"speculative, {dtype}"
        for gamma in (7, 15):  # 8 and 16 rows: whole blocks of the kernels
            found.append(one(mode, f"suffix γ {gamma}, {dtype}", method="suffix", gamma=gamma))
        for gamma, least, draft_dtype in ((4, 0.0, "int4"), (4, 0.0, "int8"), (7, 0.4, "int4")):
            name = f"draft-model {draft_dtype} γ {gamma} stop {least}, {dtype}"
            draft = {"draft": DRAFT, "draft_dtype": draft_dtype, "gamma": gamma, "stop_below": least}
            found.append(one(mode, name, **draft))
        name = f"suffix, else draft-model int4 γ 15 stop 0.4, {dtype}"
        draft = {"draft": DRAFT, "draft_dtype": "int4", "gamma": 15, "stop_below": 0.4}
        found.append(one(mode, name, method="fallback", lookup="suffix", **draft))
    return found


def llama_settings(threads: int) -> list[Setting]:
    base = {"model": gguf(TARGET), "threads": threads}

    def one(mode: str, name: str, **job: Any) -> Setting:
        return Setting("llama.cpp", mode, name, {**base, **job})

    found = [
        one("plain", f"plain, flash attention {what}", flash=flash)
        for what, flash in (("auto", -1), ("off", 0))
    ]
    for most, least in ((3, 0.0), (8, 0.5), (16, 0.75)):
        options = {"n_max": most, "p_min": least}
        found.append(
            one("draft", f"draft-simple {options}", type="draft_simple", draft=gguf(DRAFT), options=options)
        )
    lookups: list[tuple[str, dict[str, int]]] = [
        ("ngram_simple", {}),
        ("ngram_simple", {"size_n": 4, "size_m": 16}),
        ("ngram_map_k", {}),
        ("ngram_map_k", {"size_n": 4, "size_m": 16}),
        ("ngram_map_k4v", {}),
        ("ngram_mod", {}),
        ("ngram_mod", {"n_match": 8, "n_min": 4, "n_max": 16}),
        ("ngram_cache", {}),
    ]
    for kind, options in lookups:
        found.append(one("n-gram", f"{kind} {options or 'defaults'}", type=kind, options=options))
    return found


def transformers_settings() -> list[Setting]:
    """In bfloat16: float32 is slower in every row of vs_transformers.py."""
    folders = [str(resolve(name, dtype=torch.bfloat16)) for name in (TARGET, DRAFT)]
    base = {"model": folders[0], "dtype": "bfloat16", "options": {}}
    gamma = {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "constant"}
    assistant = {"draft": folders[1], "draft_options": {**gamma, "assistant_confidence_threshold": 0.4}}
    lookup = {"options": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 8}}
    ways: dict[str, dict[str, Any]] = {"plain": {}, "assistant": assistant, "prompt lookup": lookup}
    return [
        Setting("transformers", "any", f"{name}, bfloat16", {**base, **more}) for name, more in ways.items()
    ]


def gguf(name: str) -> str:
    return str(fetch(name))


class Runs:
    """Starts peers.py and remembers what it said."""

    def __init__(self, before: list[str], pythons: dict[str, str], tokens: int) -> None:
        self._before, self._pythons, self._tokens = before, pythons, tokens
        tokenizer = Tokenizer.from_folder(resolve(TARGET, dtype=torch.bfloat16), name=TARGET)
        self._prompts = {
            label: {"text": text, "ids": tokenizer.chat([{"role": "user", "content": text}])}
            for label, text in PROMPTS.items()
        }
        self._log: dict[str, Any] = {}
        if LOG.is_file():
            for line in LOG.read_text(encoding="utf-8").splitlines():
                self._log.update(json.loads(line))

    def get(self, setting: Setting, labels: list[str], what: str) -> list[dict[str, Any]]:
        """One answer to each prompt. `what` tells runs of one setting apart."""
        key = json.dumps([setting.key, labels, what, self._tokens])
        if key not in self._log:
            self._log[key] = self._run(setting, labels)
            with LOG.open("a", encoding="utf-8") as log:
                log.write(json.dumps({key: self._log[key]}) + "\n")
        found: list[dict[str, Any]] = self._log[key]
        rates = ", ".join(f"{label} {rate(answer):.1f}" for label, answer in zip(labels, found, strict=True))
        print(f"{what}: {setting.key}: {rates} tokens/s", flush=True)
        return found

    def _run(self, setting: Setting, labels: list[str]) -> list[dict[str, Any]]:
        prompts = [self._prompts[label] for label in labels]
        job = {"library": setting.library, **setting.job, "prompts": prompts, "tokens": self._tokens}
        python = self._pythons.get(setting.library, sys.executable)
        done = subprocess.run(
            [*self._before, python, str(PEERS), json.dumps(job)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{setting.key} failed:\n{done.stderr[-3000:]}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def rate(answer: dict[str, Any], *, prefill: bool = False) -> float:
    """Tokens a second."""
    return float(answer["tokens"] / (answer["decode"] + (answer["first"] if prefill else 0.0)))


def measure(
    runs: Runs, settings: list[Setting], repeats: int
) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str, str], dict[str, Any]]]:
    """-> by setting and prompt, the answer of the search; by (library, mode, prompt), the best setting and
    its runs in turns."""
    labels = list(PROMPTS)
    searched = {
        setting.key: dict(zip(labels, runs.get(setting, labels, "search"), strict=True))
        for setting in settings
    }
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for label in labels:
        for setting in settings:
            key = (setting.library, setting.mode, label)
            if key not in best or rate(searched[setting.key][label]) > rate(
                searched[best[key]["setting"].key][label]
            ):
                best[key] = {"setting": setting, "answers": []}
    for repeat in range(repeats):
        order = list(best) if repeat % 2 == 0 else list(best)[::-1]
        for key in order:
            best[key]["answers"] += runs.get(best[key]["setting"], [key[2]], f"round {repeat + 1}")
    return searched, best


def requirements(best: dict[tuple[str, str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    def speed(library: str, modes: Callable[[str], bool], label: str, *, prefill: bool = False) -> float:
        """Of the best of these modes."""
        return max(
            statistics.median(rate(answer, prefill=prefill) for answer in entry["answers"])
            for (of, mode, prompt), entry in best.items()
            if of == library and prompt == label and modes(mode)
        )

    def is_(name: str) -> Callable[[str], bool]:
        return lambda mode: mode == name

    def any_(mode: str) -> bool:
        return bool(mode)

    asked = []

    def at_least(name: str, least: float, measured: float) -> None:
        asked.append(requirement(name, f"≥ {least}", measured, measured >= least))

    for label, least in (("code", 1.5), ("edit", 2.5)):
        ratio = speed("taslak", is_("speculative, int8"), label) / speed("taslak", is_(PLAIN_INT8), label)
        at_least(f"int8, {label}: speculative / plain", least, ratio)
    for label in PROMPTS:
        ratio = speed("taslak", is_(PLAIN_INT4), label) / speed("llama.cpp", is_("plain"), label)
        at_least(f"{label}: plain int4 / llama.cpp plain", 1.15, ratio)
    for label, least in (("code", 1.4), ("edit", 1.8)):
        ratio = speed("taslak", any_, label) / speed("llama.cpp", any_, label)
        at_least(f"{label}: best / llama.cpp's best", least, ratio)
    for label in PROMPTS:
        ratio = speed("taslak", any_, label) / speed("transformers", any_, label)
        at_least(f"{label}: best / transformers' best", 3.0, ratio)
    return asked


def table(
    settings: list[Setting],
    searched: dict[str, dict[str, Any]],
    best: dict[tuple[str, str, str], dict[str, Any]],
) -> list[list[Any]]:
    """A row for each setting and a column for each prompt: the median of the runs in turns, in brackets with
    prefill; where it was not the best of its mode, the one run of the search."""
    rows = []
    for setting in settings:
        row: list[Any] = [setting.library, setting.name]
        for label in PROMPTS:
            entry = best[setting.library, setting.mode, label]
            answers, mark = (entry["answers"], "") if entry["setting"] == setting else ([], "")
            if not answers:
                answers, mark = [searched[setting.key][label]], "once: "
            own, whole = (statistics.median(rate(a, prefill=p) for a in answers) for p in (False, True))
            row.append(f"{mark}{own:.1f} ({whole:.1f})")
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--fresh", action="store_true", help="forget the runs of an earlier start")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has xllamacpp")
    parser.add_argument("--before", default="", help="a command that starts every timed process, as nice")
    options = parser.parse_args()
    if options.fresh:
        LOG.unlink(missing_ok=True)
    here = machine()
    settings = [*taslak_settings(), *llama_settings(_native.threads()), *transformers_settings()]
    runs = Runs(shlex.split(options.before), {"llama.cpp": options.llama_python}, options.tokens)
    searched, best = measure(runs, settings, options.repeats)
    finish(
        __file__,
        columns=["library", "setting", *(f"{label}: tokens/s (with prefill)" for label in PROMPTS)],
        rows=table(settings, searched, best),
        raw={
            "search": searched,
            "in turns": [
                {"library": key[0], "mode": key[1], "prompt": key[2], "setting": entry["setting"].name}
                | {"answers": entry["answers"]}
                for key, entry in best.items()
            ],
        },
        requirements=requirements(best),
        machine=here,
        tokens=options.tokens,
        settings={setting.key: json.loads(_without_cache(json.dumps(setting.job))) for setting in settings},
    )


def _without_cache(text: str) -> str:
    """What is stored names files within the cache folder, wherever that is."""
    return text.replace(f"{cache_home()}/", "")


if __name__ == "__main__":
    main()
