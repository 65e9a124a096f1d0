"""taslak beside transformers: the same weights, dtype, prompts and γ, in one process, in turns.

    python benchmarks/vs_transformers.py [--quick] [--repeats 3] [--tokens 64] [--dtype float32 …]

Plain decoding, a draft model (Qwen2.5-Coder 1.5B with 0.5B), and n-gram look-up. Both libraries draft with
the same γ, and with a draft model in two ways: always γ tokens, and stopping where the draft model is unsure;
each way is compared with its like. Tokens a second count the whole call, prefill included. An answer is
identical when its ids equal the same library's plain answer.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from harness import finish, interleave, machine, requirement

import taslak
from taslak.engine import LanguageModel
from taslak.models.loading import resolve
from taslak.models.pretrained import TORCH_DTYPES

DEFAULT = "smollm2-135m-instruct"
QWEN, QWEN_DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
GAMMA = 4
UNSURE = "draft-model, unsure stops"

FILE = '''import csv
import statistics


def load(path):
    """Rows of a CSV file as dictionaries."""
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def column(rows, name):
    """One column as floats; empty cells are left out."""
    return [float(row[name]) for row in rows if row[name]]


def summarise(rows, name):
    values = column(rows, name)
    return {"mean": statistics.mean(values), "spread": statistics.pstdev(values)}
'''
PROMPTS = {
    "code": "Write a Python class `Matrix` with addition, multiplication and transpose, and docstrings.",
    "edit": f"Rename the function `column` to `numbers` everywhere and give the whole file back.\n\n{FILE}",
    "story": "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
}
Run = tuple[float, list[int], Any]
"""Seconds, the answer's ids, acceptance counts where there are any."""


def run_ours(model: LanguageModel, prompt: str, tokens: int, *, speculate: bool) -> Run:
    start = time.perf_counter()
    answer = model.generate(prompt, max_tokens=tokens, speculate=speculate)
    return time.perf_counter() - start, list(answer.ids), answer.counts


def run_theirs(model: Any, ids: torch.Tensor, tokens: int, **options: Any) -> Run:
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **options
        )
    return time.perf_counter() - start, output[0, ids.shape[1] :].tolist(), None


class Peer:
    """transformers with the same folder of weights, and its ways to draft."""

    def __init__(self, name: str, draft: str | None, dtype: str) -> None:
        self._model = self._load(name, dtype)
        self._draft = self._load(draft, dtype) if draft else None

    @staticmethod
    def _load(name: str, dtype: str) -> Any:
        folder = resolve(name, dtype=TORCH_DTYPES[dtype])
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=TORCH_DTYPES[dtype]).eval()
        model.generation_config.update(temperature=None, top_p=None, top_k=None)
        return model

    def plain(self, ids: torch.Tensor, tokens: int) -> Run:
        return run_theirs(self._model, ids, tokens)

    def lookup(self, ids: torch.Tensor, tokens: int) -> Run:
        return run_theirs(self._model, ids, tokens, prompt_lookup_num_tokens=GAMMA, max_matching_ngram_size=8)

    def assisted(self, ids: torch.Tensor, tokens: int, threshold: float) -> Run:
        assert self._draft is not None
        config = self._draft.generation_config
        config.num_assistant_tokens = GAMMA
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = threshold
        return run_theirs(self._model, ids, tokens, assistant_model=self._draft)


def sides(
    pair: dict[str, LanguageModel], peer: Peer, prompt: str, tokens: int
) -> dict[str, Callable[[], Run]]:
    """Everything that runs in turns for one prompt: "side/method"."""
    any_model = next(iter(pair.values()))
    ids = torch.tensor([any_model.encode(prompt)])
    found: dict[str, Callable[[], Run]] = {
        "taslak/plain": lambda: run_ours(any_model, prompt, tokens, speculate=False),
        "transformers/plain": lambda: peer.plain(ids, tokens),
    }
    for method, model in pair.items():
        found[f"taslak/{method}"] = lambda model=model: run_ours(model, prompt, tokens, speculate=True)
    found["transformers/ngram"] = lambda: peer.lookup(ids, tokens)
    if "draft-model" in pair:
        found["transformers/draft-model"] = lambda: peer.assisted(ids, tokens, 0.0)
        found[f"transformers/{UNSURE}"] = lambda: peer.assisted(ids, tokens, 0.4)
    return found


def measure(name: str, draft: str | None, dtype: str, tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Every prompt of one model and dtype: raw seconds, ids compared, acceptance."""
    pair = {"ngram": taslak.load(name, method="ngram", gamma=GAMMA, dtype=dtype)}
    if draft:
        pair["draft-model"] = taslak.load(name, draft=draft, gamma=GAMMA, dtype=dtype)
        pair[UNSURE] = taslak.load(name, draft=draft, gamma=GAMMA, dtype=dtype, stop_below=0.3)
    peer = Peer(name, draft, dtype)
    records = []
    for label, prompt in PROMPTS.items():
        print(f"{name} {dtype} {label}", flush=True)
        runs = interleave(
            sides(pair, peer, prompt, tokens), repeats, warm_up=sides(pair, peer, prompt, tokens=4)
        )
        for side, results in runs.items():
            library, method = side.split("/")
            counts = results[-1][2]
            records.append(
                {
                    "model": name,
                    "dtype": dtype,
                    "prompt": label,
                    "library": library,
                    "method": method,
                    "seconds": [round(seconds, 4) for seconds, _, _ in results],
                    "tokens": len(results[-1][1]),
                    "identical": all(ids == runs[f"{library}/plain"][-1][1] for _, ids, _ in results),
                    "same_as_theirs": results[-1][1] == runs["transformers/plain"][-1][1],
                    "tau": counts.tau if counts is not None else None,
                    "acceptance_rate": counts.acceptance_rate if counts is not None else None,
                }
            )
    return records


def rate(record: dict[str, Any]) -> float:
    """Tokens a second, median."""
    return float(record["tokens"] / statistics.median(record["seconds"]))


def compared(records: list[dict[str, Any]]) -> list[list[Any]]:
    """One row for each model, dtype, prompt and method: both libraries."""
    rows = []
    for mine in (r for r in records if r["library"] == "taslak"):
        keys = ("model", "dtype", "prompt", "method")
        theirs = next(
            r for r in records if r["library"] == "transformers" and all(r[k] == mine[k] for k in keys)
        )
        rows.append(
            [
                mine["model"],
                mine["dtype"],
                mine["prompt"],
                mine["method"],
                rate(mine),
                rate(theirs),
                rate(mine) / rate(theirs),
                mine["tau"],
                mine["acceptance_rate"],
                mine["identical"],
                theirs["identical"],
            ]
        )
    return rows


COLUMNS = ["model", "dtype", "prompt", "method", "taslak tokens/s", "transformers tokens/s", "ratio"]
COLUMNS += ["tokens per pass", "acceptance rate", "identical", "theirs identical"]


def required(rows: list[list[Any]]) -> list[dict[str, Any]]:
    """Not slower in any; the pair's tokens per pass and acceptance rate on code."""
    found = []
    for key in dict.fromkeys((row[0], row[1], row[3]) for row in rows):
        worst = min(row[6] for row in rows if (row[0], row[1], row[3]) == key)
        name = f"{', '.join(key)}: speed over transformers, slowest prompt"
        found.append(requirement(name, "≥ 1.0", worst, worst >= 1.0))
    for row in rows:
        if row[0] == QWEN and row[2] == "code" and row[3] == "draft-model":
            found.append(
                requirement(f"pair, {row[1]}, code: tokens per pass", "≥ 3.5", row[7], row[7] >= 3.5)
            )
            found.append(
                requirement(f"pair, {row[1]}, code: acceptance rate", "≥ 0.65", row[8], row[8] >= 0.65)
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the default model alone, one repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=list(TORCH_DTYPES))
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    here = machine()
    records: list[dict[str, Any]] = []
    for dtype in arguments.dtype[:1] if arguments.quick else arguments.dtype:
        for name, draft in ((DEFAULT, None), (QWEN, QWEN_DRAFT)):
            if arguments.quick and draft:
                continue
            repeats = 1 if arguments.quick else arguments.repeats
            records += measure(name, draft, dtype, arguments.tokens, repeats)
            gc.collect()
    rows = compared(records)
    finish(
        __file__,
        columns=COLUMNS,
        rows=rows,
        raw=records,
        requirements=required(rows),
        machine=here,
        gamma=GAMMA,
        tokens=arguments.tokens,
    )


if __name__ == "__main__":
    main()
