"""Every drafter of the default model on prompts that no head was trained on.

    python benchmarks/drafters.py [--limit 300] [--fresh] [--eagle DIR] [--medusa DIR] [--early-exit DIR]

The 300 prompts of training/held_out.jsonl (75 of each category), answers of up to 96 tokens, one at a time:
greedy, and at temperature 0.8 with coupled and with rejection verification. Each prompt is answered in
every way in turns, plain decoding among them, so that what else the machine does meets all of them. Speed
is that of the whole call, prefill included. Answers are kept as they come, and a run that was stopped goes
on with the next prompt.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from harness import HELD_OUT, RESULTS, finish, machine, requirement

from taslak.core.counts import Counts
from taslak.drafters.formats import find_head, read_head
from taslak.engine import LanguageModel
from taslak.loading import load
from taslak.models.loading import DEFAULT_PACK
from taslak.models.pretrained import Pretrained, load_pretrained

LOG = RESULTS / "drafters.runs.jsonl"
TOKENS = 96
TEMPERATURE = 0.8
GREEDY, COUPLED, REJECTION = "greedy", f"{TEMPERATURE}, coupled", f"{TEMPERATURE}, rejection"
PLAIN = "plain"


@dataclass(frozen=True)
class Way:
    """How prompts are answered. `head`: the kind it drafts with; `under`: which settings it runs in;
    `control`: as `taslak.load` sets it up when nothing is said: the depth chosen as answers go."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    head: str | None = None
    under: tuple[str, ...] = (GREEDY,)
    control: bool = False


DEFAULT = "default"
"""What a user gets who says nothing: a look-up, and behind it the EAGLE head, as deep as it pays."""
SHIPPED = "EAGLE"
"""The head alone, drafting in every step as its own file says."""
WAYS = (
    Way(PLAIN, {"method": "ngram"}, under=(GREEDY, COUPLED)),
    Way(DEFAULT, {"method": "auto"}, "eagle", (GREEDY, COUPLED), control=True),
    Way("suffix", {"method": "suffix", "gamma": 7}),
    Way(SHIPPED, {}, "eagle", (GREEDY, COUPLED, REJECTION)),
    Way("EAGLE tree", {"gamma": 5, "branch": 3, "nodes": 12}, "eagle", (GREEDY, COUPLED)),
    # as large as EAGLE-2's and Medusa's own, which were made for machines that don't feel the rows
    Way("EAGLE tree of 60", {"gamma": 6, "branch": 8, "nodes": 60}, "eagle", (GREEDY, COUPLED)),
    Way("EAGLE line", {"gamma": 4}, "eagle"),
    Way("Medusa", {}, "medusa"),
    Way("Medusa tree", {"gamma": 4, "branch": 4, "nodes": 7}, "medusa"),
    Way("Medusa tree of 60", {"gamma": 4, "branch": 8, "nodes": 60}, "medusa"),
    Way("early exit", {}, "early-exit"),
)


def models(target: Pretrained, heads: Mapping[str, str]) -> dict[tuple[str, str], tuple[LanguageModel, bool]]:
    """By setting and way, the model that answers and whether it speculates. All share one target."""
    found = {}
    for way in WAYS:
        head = None
        if way.head is not None:
            folder = find_head(heads[way.head])
            if folder is None:
                raise SystemExit(f"{heads[way.head]} is no head; name the folder of one with --{way.head}")
            head = read_head(folder)
        own = (
            asdict(head.drafting)
            if head is not None and head.drafting is not None and not way.options
            else {}
        )
        for setting in way.under:
            if way.control:
                assert way.head is not None
                model = load(DEFAULT_PACK, draft=heads[way.head], target=target, **way.options)
                found[setting, way.name] = model, True
                continue
            model = LanguageModel(
                target,
                heads={} if way.head is None or head is None else {heads[way.head]: head},
                verify="rejection" if setting == REJECTION else "coupled",
                **{"method": way.head or "ngram", **own, **way.options},
            )
            found[setting, way.name] = model, way.name != PLAIN
    return found


def answer(model: LanguageModel, prompt: str, setting: str, *, seed: int, speculate: bool) -> dict[str, Any]:
    start = time.perf_counter()
    given = model.generate(
        prompt,
        max_tokens=TOKENS,
        temperature=0.0 if setting == GREEDY else TEMPERATURE,
        seed=seed,
        speculate=speculate,
    )
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "ids": list(given.ids),
        "counts": asdict(given.counts),
        "draft": given.seconds.draft,
        "pass": given.seconds.pass_,
        "other": seconds - given.seconds.draft - given.seconds.pass_,
    }


def run(prompts: list[dict[str, Any]], heads: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a prompt: its category, and its answers by "setting/way"."""
    made_with = {
        "ways": [repr(way) for way in WAYS],
        "tokens": TOKENS,
        "heads": {kind: _digest(name) for kind, name in heads.items()},
    }
    done = {row["id"]: row for row in _kept() if row["made_with"] == made_with}
    target = load_pretrained(DEFAULT_PACK)
    sides = models(target, heads)
    for prompt in prompts[:2]:  # warm-up
        for (setting, _), (model, speculate) in sides.items():
            answer(model, prompt["prompt"], setting, seed=0, speculate=speculate)
    for number, prompt in enumerate(prompts):
        if prompt["id"] in done:
            continue
        row: dict[str, Any] = {"id": prompt["id"], "category": prompt["category"], "answers": {}}
        row["made_with"] = made_with
        order = list(sides.items())
        for (setting, way), (model, speculate) in order if number % 2 == 0 else order[::-1]:
            made = answer(model, prompt["prompt"], setting, seed=number, speculate=speculate)
            row["answers"][f"{setting}/{way}"] = made
        for key, made in row["answers"].items():
            setting = key.split("/")[0]
            if setting != REJECTION:  # promises the distribution, not the text
                made["identical"] = made["ids"] == row["answers"][f"{setting}/{PLAIN}"]["ids"]
        for made in row["answers"].values():
            made["tokens"] = len(made.pop("ids"))
        with LOG.open("a", encoding="utf-8") as log:
            log.write("\n" + json.dumps(row))  # a line that a kill cut off stays alone
        done[prompt["id"]] = row
        print(f"{number + 1} of {len(prompts)}", flush=True)
    return [done[prompt["id"]] for prompt in prompts]


def _kept() -> list[dict[str, Any]]:
    """The rows of earlier runs."""
    rows = []
    for line in LOG.read_text().splitlines() if LOG.is_file() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def _digest(name: str) -> str:
    """Of a head's files."""
    folder = find_head(name)
    if folder is None:
        raise SystemExit(f"{name} is no head; name the folder of one with --eagle, --medusa or --early-exit")
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@dataclass
class Figures:
    """Of one way in one setting over some prompts."""

    tau: float
    acceptance: float | None
    speedup: float
    tokens_per_second: float
    draft: float
    passing: float
    other: float
    hazards: list[float]
    identical: int | None


def figures(rows: Iterable[Mapping[str, Any]], setting: str, way: str) -> Figures:
    rows = list(rows)
    plain_setting = COUPLED if setting == REJECTION else setting
    own = [row["answers"][f"{setting}/{way}"] for row in rows]
    plain = [row["answers"][f"{plain_setting}/{PLAIN}"] for row in rows]
    counts = Counts()
    for made in own:
        counts.add(Counts(**made["counts"]))
    rate = sum(made["tokens"] for made in own) / sum(made["seconds"] for made in own)
    plain_rate = sum(made["tokens"] for made in plain) / sum(made["seconds"] for made in plain)

    def step(what: str) -> float:
        return 1e3 * sum(float(made[what]) for made in own) / counts.passes

    return Figures(
        tau=counts.tau or 0.0,
        acceptance=counts.acceptance_rate,
        speedup=rate / plain_rate,
        tokens_per_second=rate,
        draft=step("draft"),
        passing=step("pass"),
        other=step("other"),
        hazards=counts.hazards,
        identical=None if setting == REJECTION else sum(made["identical"] for made in own),
    )


def plot(found: Mapping[tuple[str, str], Mapping[str, Figures]], categories: list[str], path: Path) -> None:
    mpl.use("Agg")
    shown = [key for key in found if key[1] != PLAIN]
    _, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
    width = 0.8 / len(shown)
    for i, key in enumerate(shown):
        values = [found[key][category].speedup for category in categories]
        at = [c + i * width - 0.4 + width / 2 for c in range(len(categories))]
        axes.bar(at, values, width, label=f"{key[1]} ({key[0]})")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(categories)), categories)
    axes.set_ylabel("tokens/s over plain decoding's")
    axes.legend(fontsize=7, ncols=2)
    plt.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=300, help="prompts, evenly of all categories")
    parser.add_argument("--fresh", action="store_true", help="forget the answers of an earlier run")
    for kind in ("eagle", "medusa", "early-exit"):
        parser.add_argument(f"--{kind}", default=f"{DEFAULT_PACK}-{kind}", help="head: folder or name")
    given = parser.parse_args()
    heads = {kind: getattr(given, kind.replace("-", "_")) for kind in ("eagle", "medusa", "early-exit")}
    if given.fresh:
        LOG.unlink(missing_ok=True)
    by_category = defaultdict(list)
    for line in HELD_OUT.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        by_category[row["category"]].append(row)
    categories = sorted(by_category)
    each = max(1, given.limit // len(categories))
    prompts = [
        row for group in zip(*(by_category[c][:each] for c in categories), strict=True) for row in group
    ]
    here = machine()
    rows = run(prompts, heads)

    found: dict[tuple[str, str], dict[str, Figures]] = {}
    for way in WAYS:
        for setting in way.under:
            found[setting, way.name] = {
                category: figures((row for row in rows if row["category"] == category), setting, way.name)
                for category in categories
            }
    table = []
    for (setting, name), by in found.items():
        every = figures(rows, setting, name)
        means = {
            what: statistics.mean(getattr(one, what) for one in by.values())
            for what in ("tau", "speedup", "draft", "passing", "other")
        }
        table.append(
            [
                name,
                setting,
                round(means["tau"], 3),
                every.acceptance,
                *(round(by[category].speedup, 3) for category in categories),
                round(means["speedup"], 3),
                *(round(means[what], 2) for what in ("draft", "passing", "other")),
                "–" if every.identical is None else f"{every.identical} of {len(rows)}",
            ]
        )

    def tau(setting: str, name: str) -> float:
        return statistics.mean(one.tau for one in found[setting, name].values())

    def speed(name: str) -> list[float]:
        return [one.speedup for one in found[GREEDY, name].values()]

    asked = [
        (f"τ, {name}, {setting}", least, tau(setting, name))
        for name, setting, least in (
            ("EAGLE tree", GREEDY, 2.8),
            ("EAGLE tree of 60", GREEDY, 2.8),
            ("EAGLE line", GREEDY, 2.4),
            ("Medusa tree", GREEDY, 2.0),
            ("Medusa tree of 60", GREEDY, 2.0),
            ("early exit", GREEDY, 1.6),
            ("EAGLE tree", COUPLED, 2.3),
            ("EAGLE tree of 60", COUPLED, 2.3),
        )
    ]
    for name in (DEFAULT, SHIPPED):
        asked += [
            (f"speed over plain, {name}, mean", 1.4, statistics.mean(speed(name))),
            (f"speed over plain, {name}, worst category", 1.05, min(speed(name))),
        ]
    asked += [
        ("speed over plain, Medusa, mean", 1.15, statistics.mean(speed("Medusa"))),
    ]
    plot(found, categories, RESULTS / "drafters.svg")
    finish(
        __file__,
        machine=here,
        columns=[
            "method",
            "setting",
            "τ",
            "acceptance rate",
            *(f"speed, {category}" for category in categories),
            "speed, mean",
            "draft ms",
            "pass ms",
            "other ms",
            "identical",
        ],
        rows=table,
        requirements=[requirement(name, f"≥ {least}", value, value >= least) for name, least, value in asked],
        raw={
            "tokens": TOKENS,
            "prompts": len(rows),
            "heads": heads,
            "shipped": SHIPPED,
            "by category": [
                {"method": name, "setting": setting, "category": category, **asdict(one)}
                for (setting, name), by in found.items()
                for category, one in by.items()
            ],
            "answers": rows,
        },
    )


if __name__ == "__main__":
    main()
