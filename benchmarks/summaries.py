"""Tables made from several stored results. They measure nothing; scripts/tables puts them into pages.

Each function gives {"columns", "rows"} from the files in `results`, so that no figure is written by hand.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

Table = dict[str, list[Any]]

PAIR = "Qwen2.5-Coder 1.5B, int4"
SMALL = "SmolLM2 135M, int4"
PROMPTS = {"code": "write code", "edit": "edit code", "story": "a story"}
CATEGORIES = {"code": "code", "math": "mathematics", "instruct": "instructions", "chat": "chat"}
GREEDY, DRAWN, REJECTION = "greedy", "0.8, coupled", "0.8, rejection"


def readme(results: Path) -> Table:
    """The README's one table: tokens a second plainly and with drafts, wins and losses."""
    rows: list[list[Any]] = []
    best = {prompt: dict(_best(results, prompt)) for prompt in PROMPTS}
    for prompt, text in PROMPTS.items():
        rates = best[prompt]
        plain, drafted = rates["taslak", "plain, int4"], rates["taslak", "speculative, int4"]
        others = [
            max(v for (who, _), v in rates.items() if who == of) for of in ("llama.cpp", "transformers")
        ]
        rows.append([f"{PAIR}: {text}", plain, drafted, drafted / plain, *others])
    ways = by_way(results)
    for category, text in CATEGORIES.items():
        row, plain = ways["default", GREEDY][category], ways["plain", GREEDY][category]
        rows.append(
            [f"{SMALL}: {text}", *(each["tokens_per_second"] for each in (plain, row)), row["speedup"]]
        )
    served = {row[0]: row[1] for row in read(results, "serving")["table"]["rows"]}
    rates = [float(served[f"taslak, 8 streams{plain}"]) for plain in (", plain", "")]
    rows.append([f"{SMALL}: eight answers at once", *rates, rates[1] / rates[0]])
    for method, what in (
        ("Medusa tree", "always a tree of 7 from Medusa heads"),
        ("EAGLE tree", "always a tree of 12 from the EAGLE head"),
        ("early exit", "always three tokens from half its own layers"),
    ):
        rows.append([f"{SMALL}: {what}", *_over_all(ways, method)])
    columns = ["greedy, 2 cores", "plain, tokens/s", "with drafts", "times plain"]
    return _table([*columns, "llama.cpp, best", "transformers, best"], rows)


def choosing(results: Path) -> Table:
    """Speed over plain decoding by text and by what drafts."""
    rows: list[list[Any]] = []
    search = read(results, "vs_peers")["raw"]["search"]
    for prompt, text in PROMPTS.items():
        rates = {
            key.removeprefix("taslak: ").removesuffix(", int4"): _rate(answers[prompt])
            for key, answers in search.items()
            if key.startswith("taslak: ") and key.endswith(", int4")
        }
        plain = rates["plain"]
        ways = ("suffix γ", "draft-model", "suffix, else draft-model")
        found = [max(rate for key, rate in rates.items() if key.startswith(way)) / plain for way in ways]
        rows.append([f"{PAIR}, with its 0.5B", text, *found, _name(found)])
    found_by = by_way(results)
    for category, text in CATEGORIES.items():
        found = [found_by[way, GREEDY][category]["speedup"] for way in ("suffix", "EAGLE", "default")]
        rows.append([f"{SMALL}, with its EAGLE head", text, *found, _name(found)])
    columns = ["model", "text", "look-up alone", "model or head alone", "both"]
    return _table([*columns, "fastest"], rows)


def temperatures(results: Path) -> Table:
    """What drawing tokens costs speculation: the default model, all categories together."""
    ways = by_way(results)
    rows = [
        [name, setting, mean(ways[name, setting], "tau"), mean(ways[name, setting], "speedup")]
        for name, settings in (("default", (GREEDY, DRAWN)), ("EAGLE", (GREEDY, DRAWN, REJECTION)))
        for setting in settings
    ]
    return _table(["method", "tokens, verification", "τ", "times plain"], rows)


def statements(results: Path) -> Table:
    """What is often said, and what was measured here."""
    ways, counts = by_way(results), counts_by_way(results)
    line, lookup = counts["EAGLE line", GREEDY], counts["suffix", GREEDY]
    hazards = [
        accepted / offered
        for accepted, offered in zip(line["accepted_at"], line["offered_at"], strict=True)
        if offered
    ]
    rates = dict(_best(results, "edit"))
    edit = rates["taslak", "speculative, int4"] / rates["taslak", "plain, int4"]
    tau = {name: mean(ways[name, GREEDY], "tau") for name in ("EAGLE line", "EAGLE tree", "EAGLE tree of 60")}
    speed = {name: mean(ways[name, GREEDY], "speedup") for name in tau}
    curves = read(results, "cpu_kernels")["curves"]
    served = {row[0]: float(row[1]) for row in read(results, "serving")["table"]["rows"] if row[1]}
    drawn, judged = ways["EAGLE", DRAWN], ways["EAGLE", REJECTION]
    sure, always = (_peer(results, method) for method in ("draft-model, unsure stops", "draft-model"))
    prompts = read(results, "drafters")["raw"]["prompts"]
    same = sum(row["identical"] for row in ways["default", GREEDY].values())
    parted = [
        f"{row['library']} ({row['method']}, {row['prompt']})"
        for row in read(results, "vs_transformers")["raw"]
        if not row["identical"]
    ]
    rows = [
        [
            "The speed-up is 1 + α",
            "; ".join(f"{name}: τ {tau[name]:.2f}, {speed[name]:.2f} times as fast" for name in tau)
            + f"; the 1.5B editing code: τ {_tau(results, 'edit'):.1f}, {edit:.1f} times",
            "It would be if drafts took no time and a pass over many rows as long as over one",
        ],
        [
            "The acceptance rate (accepted / drafted) is the chance of a drafted token",
            f"four tokens from the EAGLE head: accepted / drafted {line['accepted'] / line['drafted']:.2f}; "
            "by depth, where the one before was accepted: " + ", ".join(f"{each:.2f}" for each in hazards),
            "What stands behind the first wrong token was drafted and never looked at",
        ],
        [
            "A higher acceptance rate is better",
            "1.5B, bfloat16, a story, where drafts end as soon as the 0.5B is unsure: "
            f"{always[1]:.2f} → {sure[1]:.2f} accepted, {always[0]:.2f} → {sure[0]:.2f} tokens a pass, "
            f"{always[2]:.2f} → {sure[2]:.2f} tokens/s",
            "It rises by drafting less; what counts is time",
        ],
        [
            "Mean acceptance length (1 + accepted / drafts) is the number of tokens a pass",
            f"look-up, greedy: {1 + lookup['accepted'] / lookup['offered_at'][0]:.2f} by that formula, τ "
            f"{(lookup['accepted'] + lookup['bonuses']) / lookup['passes']:.2f}",
            "Passes without a draft aren't in it; of a look-up that is most of them",
        ],
        [
            "Checking several tokens costs as much as decoding one",
            "a pass over 8 rows in passes over one: "
            + ", ".join(
                f"{name} {curves[key][7] / curves[key][0]:.2f}"
                for name, key in (
                    ("1.5B int8", "int8, avx512vnni"),
                    ("int4", "int4, avx512vnni"),
                    ("int4 on AVX2", "int4, avx2"),
                    ("llama.cpp", "llama.cpp"),
                )
            ),
            "Only while the pass waits for memory",
        ],
        [
            "A bigger tree is faster",
            f"60 nodes instead of 12: τ {tau['EAGLE tree']:.2f} → {tau['EAGLE tree of 60']:.2f}, "
            f"{speed['EAGLE tree']:.2f} → {speed['EAGLE tree of 60']:.2f} times plain",
            "The same: 61 rows are computed, not read",
        ],
        [
            "Rejection accepts most, so it is fastest",
            f"EAGLE at 0.8: τ {mean(judged, 'tau'):.2f}, {mean(judged, 'speedup'):.2f} times plain by "
            f"rejection; τ {mean(drawn, 'tau'):.2f}, {mean(drawn, 'speedup'):.2f} times coupled",
            "It needs whole rows of probabilities, which PyTorch makes here; coupled needs one draw",
        ],
        [
            "What pays for one answer pays for a server",
            "135M: "
            + ", ".join(
                f"{many} {served[f'taslak, {many}'] / served[f'taslak, {many}, plain']:.2f} times plain"
                for many in ("1 stream", "8 streams")
            ),
            "Eight answers fill the pass; a draft's rows then cost what they gain",
        ],
        [
            "Lossless means the same text",
            f"135M, native kernels: {same} of {prompts} answers identical; "
            f"in PyTorch's bfloat16 (without `--exact`) parted from plain decoding: {', '.join(parted)}",
            "Exact in mathematics; a computer rounds, and not the same way for every number of rows",
        ],
    ]
    return _table(["what is said", "measured here", "why"], rows)


def passes(results: Path) -> Table:
    """The memory's limit of a plain token, and what more rows cost, by model, width and kernels."""
    models = read(results, "cpu_kernels")["raw"]["models"]
    rows: list[list[Any]] = []
    for name, found in models.items():
        model, dtype = name.split(", ")
        for path in ("avx512vnni", "avx2"):
            one, four, eight = (statistics.median(found["seconds"][f"{path}/{n}"]) for n in (1, 4, 8))
            limit = found["limit"]
            figures = [found["bytes"] / 1e6, limit * 1e3, one / limit, four / one, eight / one]
            rows.append([model, dtype, path, *figures])
    columns = ["model", "weights", "kernels", "MB a token", "limit, ms", "one row, × limit"]
    return _table([*columns, "4 rows, × one", "8 rows, × one"], rows)


def readme_tr(results: Path) -> Table:
    """`readme` for README.tr.md. Raises KeyError where a word has no translation yet."""
    english = readme(results)
    rows = [
        [f"{row[0].split(': ')[0]}: {TURKISH[row[0].split(': ')[1]]}", *row[1:]] for row in english["rows"]
    ]
    return _table([TURKISH[column] for column in english["columns"]], rows)


TURKISH = {
    "greedy, 2 cores": "açgözlü seçim, 2 çekirdek",
    "plain, tokens/s": "yalın, token/s",
    "with drafts": "taslakla",
    "times plain": "kaç kat",
    "llama.cpp, best": "llama.cpp, en iyisi",
    "transformers, best": "transformers, en iyisi",
    "write code": "kod yazma",
    "edit code": "kod düzenleme",
    "a story": "öykü",
    "code": "kod",
    "mathematics": "matematik",
    "instructions": "yönergeler",
    "chat": "sohbet",
    "eight answers at once": "aynı anda sekiz yanıt",
    "always a tree of 7 from Medusa heads": "her adımda Medusa'dan 7'lik ağaç",
    "always a tree of 12 from the EAGLE head": "her adımda EAGLE'dan 12'lik ağaç",
    "always three tokens from half its own layers": "her adımda kendi katmanlarının yarısından üç token",
}

SUMMARIES: dict[str, Callable[[Path], Table]] = {
    each.__name__: each for each in (readme, readme_tr, choosing, temperatures, statements, passes)
}


def _table(columns: list[str], rows: list[list[Any]]) -> Table:
    return {"columns": columns, "rows": [[*row, *[None] * (len(columns) - len(row))] for row in rows]}


@cache
def read(results: Path, name: str) -> Any:
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


def _rate(answer: dict[str, Any]) -> float:
    """Tokens a second from the first token to the last."""
    return float((answer["tokens"] - 1) / answer["decode"])


def _best(results: Path, prompt: str) -> Iterator[tuple[tuple[str, str], float]]:
    """(library, mode) -> the median rate of its best setting for a prompt."""
    for entry in read(results, "vs_peers")["raw"]["in turns"]:
        if entry["prompt"] == prompt:
            yield (entry["library"], entry["mode"]), statistics.median(map(_rate, entry["answers"]))


def _tau(results: Path, prompt: str) -> float:
    """Tokens a pass of the best speculative setting, int4."""
    return next(
        statistics.median(answer["tau"] for answer in entry["answers"])
        for entry in read(results, "vs_peers")["raw"]["in turns"]
        if (entry["library"], entry["mode"], entry["prompt"]) == ("taslak", "speculative, int4", prompt)
    )


def _peer(results: Path, method: str) -> tuple[float, float, float]:
    """τ, acceptance rate, tokens/s of the pair on the story in bfloat16, in PyTorch."""
    rows = read(results, "vs_transformers")["table"]["rows"]
    row = next(row for row in rows if row[1:4] == ["bfloat16", "story", method])
    return row[7], row[8], row[4]


def by_way(results: Path) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """(method, setting) -> category -> figures of the default model's drafters."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in read(results, "drafters")["raw"]["by category"]:
        found.setdefault((row["method"], row["setting"]), {})[row["category"]] = row
    return found


def mean(by_category: dict[str, dict[str, Any]], what: str) -> float:
    return statistics.mean(row[what] for row in by_category.values())


def _over_all(
    ways: dict[tuple[str, str], dict[str, dict[str, Any]]], method: str
) -> tuple[float, float, float]:
    """Tokens/s plainly and so, and the ratio, greedy, means over the categories."""
    plain, drafted = (mean(ways[name, GREEDY], "tokens_per_second") for name in ("plain", method))
    return plain, drafted, mean(ways[method, GREEDY], "speedup")


def counts_by_way(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(method, setting) -> counts over all answers of the default model's drafters."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for prompt in read(results, "drafters")["raw"]["answers"]:
        for way, answer in prompt["answers"].items():
            setting, method = way.split("/")
            into = found.setdefault((method, setting), {})
            for name, value in answer["counts"].items():
                if isinstance(value, list):
                    before = into.setdefault(name, [])
                    before.extend([0] * (len(value) - len(before)))
                    for depth, each in enumerate(value):
                        before[depth] += each
                else:
                    into[name] = into.get(name, 0) + value
    return found


def _name(found: list[float]) -> str:
    """Which of look-up, model or head, both is fastest; none where none gains."""
    if max(found) < 1.0:
        return "plain"
    return ("look-up", "model or head", "both")[found.index(max(found))]
