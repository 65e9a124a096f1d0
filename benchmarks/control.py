"""The controller against every fixed depth, and against plain decoding where nothing can be gained.

    python benchmarks/control.py [--pair] [--tokens 96] [--prompts 2] [--repeats 4] [--only PART]

Tasks are taslak's own suite, temperatures 0, 0.7 and 1.0. The same drafters answer each prompt with fixed γ
from 0 (plain) to 12, ending where the head is unsure as its own file says, and under the controller. All in
turns, the order reversed in every other pair of repeats. The best fixed γ of a cell is
chosen on one half of the repeats and compared on the other, both ways round. Speed is that of the whole call,
prefill included. Answers are kept as they come; a run that was stopped goes on.

`--pair`: Qwen's 1.5B model with its 0.5B one (int8) besides the default model with its heads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from harness import HELD_OUT, RESULTS, finish, machine, requirement, versions

import taslak
from taslak.bench.decoding import first_requests
from taslak.bench.prompts import BenchPrompt, as_text, by_task, chosen, read, suite
from taslak.control.advise import advise
from taslak.control.calibrate import Calibration, calibrated
from taslak.control.controller import Controller
from taslak.control.recorder import Recorder
from taslak.core.draft import Draft
from taslak.drafters.base import Budget, Needs, Report, View
from taslak.engine import LanguageModel
from taslak.engine.policy import FixedGamma, Policy
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Request
from taslak.engine.step import Engine
from taslak.engine.turn import Step
from taslak.loading import whatever_there_is

LOG = RESULTS / "control.runs.jsonl"
TEMPERATURES = (0.0, 0.7, 1.0)
DEPTHS = (1, 2, 3, 4, 6, 8, 12)
PLAIN, ADAPTIVE = "plain", "adaptive"
DEFAULT, PAIR = "smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct"
PAIR_DRAFT = "qwen2.5-coder-0.5b-instruct"
PAIR_TASKS = ("code-edit", "mathematics")
"""The larger model takes too long for all."""
ADVISED = 20
"""Prompts that advice is taken from."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Sweep:
    """How one model is swept: its depths, prompts a task, tokens of an answer, repeats."""

    model: str
    depths: tuple[int, ...]
    prompts: int
    tokens: int
    repeats: int
    tasks: tuple[str, ...] = ()


class Wrong:
    """Drafts ids one after the other, which no text does."""

    needs = Needs()
    watch = None

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        return [
            Draft.chain([(view.tokens[-1] + 1 + i) % 1000 for i in range(budget.depth)])
            for view, budget in zip(views, budgets, strict=True)
        ]

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None: ...

    def lag(self, _view: View) -> int:
        return 0

    def forget(self, view: View) -> None: ...


def load(name: str, everything: bool = False) -> tuple[LanguageModel, Calibration]:
    """What a user gets, or with all heads that come with the model."""
    draft = PAIR_DRAFT if name == PAIR else None
    dtype = {"dtype": "int8"} if name == PAIR else {}
    method = whatever_there_is(name, draft) if everything else None
    model = taslak.load(name, draft=draft, method=method, **dtype)
    return model, calibrated(model)


def control(known: Calibration) -> Controller:
    own = deepcopy(known)  # each way learns of the machine for itself
    return Controller(own.costs, own.priors)


def answer(model: LanguageModel, policy: Policy | None, request: Request) -> tuple[Answer, float]:
    """policy None: plainly, without drafters."""
    drafters = model.engine.drafters if policy is not None else {}
    scheduler = Scheduler(Engine(model.target, drafters, policy or FixedGamma(1)), model.tokenizer)
    started = time.perf_counter()
    scheduler.add(request)
    (made,) = [event.answer for _, event in scheduler.run() if event.answer is not None]
    return made, time.perf_counter() - started


def requests(
    model: LanguageModel, prompts: Sequence[BenchPrompt], temperature: float, tokens: int
) -> list[Request]:
    return first_requests(model, prompts, max_tokens=tokens, temperature=temperature)


def first_of(each: int) -> dict[str, list[BenchPrompt]]:
    """So many prompts of each of the suite's tasks."""
    return {task: prompts[:each] for task, prompts in by_task(suite()).items()}


# -- the grid -----------------------------------------------------------------------------------------


def grid(sweep: Sweep) -> list[dict[str, Any]]:
    """One row a model, task, temperature, prompt and repeat: seconds and tokens by way."""
    made_with = json.loads(json.dumps({**sweep.__dict__, "version": 3, **versions()}))
    done = {
        (r["task"], r["temperature"], r["prompt"], r["repeat"]): r
        for r in kept()
        if r["made_with"] == made_with
    }
    cells = {t: p for t, p in first_of(sweep.prompts).items() if not sweep.tasks or t in sweep.tasks}
    total = len(TEMPERATURES) * sum(map(len, cells.values())) * sweep.repeats
    model = known = None
    rows = []
    for repeat in range(sweep.repeats):
        for task, prompts in cells.items():
            for temperature in TEMPERATURES:
                for prompt in prompts:
                    key = (task, temperature, prompt.id, repeat)
                    if key not in done:
                        if model is None or known is None:
                            model, known = load(sweep.model)
                            warm(model, known, prompts[0], sweep)
                        row = turn(model, known, prompt, temperature, repeat, sweep)
                        done[key] = {"made_with": made_with, "task": task, "temperature": temperature, **row}
                        with LOG.open("a", encoding="utf-8") as log:
                            log.write("\n" + json.dumps(done[key]))
                        print(f"{sweep.model}: {len(done)} of {total}", flush=True)
                    rows.append(done[key])
    return rows


def ways(known: Calibration, sweep: Sweep, stop_below: float) -> Iterator[tuple[str, Policy | None]]:
    yield PLAIN, None
    for gamma in sweep.depths:  # as --gamma drafts with a head that knows where to stop
        yield str(gamma), FixedGamma(gamma, stop_below=stop_below)
    yield ADAPTIVE, control(known)


def warm(model: LanguageModel, known: Calibration, prompt: BenchPrompt, sweep: Sweep) -> None:
    for _, policy in ways(known, sweep, model.stop_below):
        answer(model, policy, requests(model, [prompt], 0.0, 16)[0])


def turn(
    model: LanguageModel,
    known: Calibration,
    prompt: BenchPrompt,
    temperature: float,
    repeat: int,
    sweep: Sweep,
) -> dict[str, Any]:
    (request,) = requests(model, [prompt], temperature, sweep.tokens)
    found: dict[str, Any] = {}
    texts = {}
    order = list(ways(known, sweep, model.stop_below))
    for name, policy in order if repeat // 2 % 2 == 0 else order[::-1]:
        made, took = answer(model, policy, request)
        found[name] = {"seconds": took, "tokens": len(made.ids), "alpha": made.counts.alpha}
        texts[name] = made.ids
    return {
        "prompt": prompt.id,
        "repeat": repeat,
        "identical": all(ids == texts[PLAIN] for ids in texts.values()),
        "answers": found,
    }


def kept() -> list[dict[str, Any]]:
    rows = []
    for line in LOG.read_text().splitlines() if LOG.is_file() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def rate(rows: Sequence[Mapping[str, Any]], way: str) -> float:
    """Tokens a second: of each prompt the median of its repeats."""
    prompts = defaultdict(list)
    for row in rows:
        prompts[row["prompt"]].append(row["answers"][way])
    tokens = sum(made[0]["tokens"] for made in prompts.values())
    return tokens / sum(statistics.median(m["seconds"] for m in made) for made in prompts.values())


def against_best(rows: Sequence[Mapping[str, Any]], depths: Sequence[str]) -> float:
    """Adaptive over the best fixed γ, chosen on one half of the repeats and compared on the other."""
    found = []
    for half in (0, 1):
        choosing = [row for row in rows if row["repeat"] % 2 == half]
        comparing = [row for row in rows if row["repeat"] % 2 != half]
        best = max(depths, key=lambda way: rate(choosing, way))
        found.append(rate(comparing, ADAPTIVE) / rate(comparing, best))
    return statistics.mean(found)


def interval(
    rows: Sequence[Mapping[str, Any]], figure: Callable[[Sequence[Mapping[str, Any]]], float]
) -> list[float]:
    """95 %, bootstrap over prompts with all their repeats."""
    rng = random.Random(0)
    prompts = defaultdict(list)
    for row in rows:
        prompts[row["prompt"]].append(row)
    names = sorted(prompts)
    found = []
    for _ in range(RESAMPLES // 10):
        drawn = [
            {**row, "prompt": f"{row['prompt']}/{i}"}
            for i, name in enumerate(rng.choices(names, k=len(names)))
            for row in prompts[name]
        ]
        found.append(figure(drawn))
    found.sort()
    return [found[len(found) * 25 // 1000], found[-1 - len(found) * 25 // 1000]]


def judged(rows: list[dict[str, Any]], model: str) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    depths = [way for way in rows[0]["answers"] if way != ADAPTIVE]
    cells = defaultdict(list)
    for row in rows:
        cells[row["task"], row["temperature"]].append(row)
    table, ratios = [], {}
    for (task, temperature), own in sorted(cells.items()):
        best = max(depths, key=lambda way: rate(own, way))
        ratios[task, temperature] = ratio = against_best(own, depths)
        low, high = interval(own, lambda some: against_best(some, depths))
        table.append(
            [
                model,
                task,
                temperature,
                best,
                round(rate(own, best) / rate(own, PLAIN), 3),
                round(rate(own, ADAPTIVE) / rate(own, PLAIN), 3),
                round(ratio, 3),
                f"{low:.3f} – {high:.3f}",
                f"{sum(row['identical'] for row in own)} of {len(own)}",
            ]
        )
    whole = {
        way: statistics.mean(rate(own, way) / rate(own, PLAIN) for own in cells.values())
        for way in [*depths, ADAPTIVE]
    }
    best = max(depths, key=whole.__getitem__)
    mean, worst = statistics.mean(ratios.values()), min(ratios.values())
    asked = [
        requirement(
            f"{model}: adaptive over the best fixed γ of each cell, mean", "≥ 0.95", mean, mean >= 0.95
        ),
        requirement(f"{model}: the same, worst cell", "≥ 0.88", worst, worst >= 0.88),
        requirement(
            f"{model}: adaptive over the best single γ ({best}), mean over all cells",
            "> 1",
            whole[ADAPTIVE] / whole[best],
            whole[ADAPTIVE] > whole[best],
        ),
    ]
    return table, asked


# -- never slower -------------------------------------------------------------------------------------


def floor(tokens: int, repeats: int) -> dict[str, list[float]]:
    """Ratios to plain decoding, a repeat each, where nothing or little can be gained."""
    model, known = load(DEFAULT, everything=True)
    # what is always wrong, calibrated as any drafter is: it is known to be
    wrong_model = taslak.load(DEFAULT, method="ngram")
    wrong_model.engine.drafters = {"ngram": Wrong()}
    wrong_model.method, wrong_model.draft_name = "wrong", "wrong"
    wrong_known = calibrated(wrong_model, fresh=True)
    tasks = first_of(3)
    creative = (
        tasks["creative"] if "creative" in tasks else next(t for n, t in tasks.items() if "creativ" in n)
    )
    mixed = [prompts[0] for prompts in tasks.values()]
    long = far(model, mixed[0], 4096)
    cases = {
        "creative text at temperature 1.2": (model, known, requests(model, creative, 1.2, tokens)),
        "a drafter that is always wrong": (wrong_model, wrong_known, requests(model, mixed[:4], 0.0, tokens)),
        "16 tokens": (model, known, requests(model, mixed, 0.0, 16)),
        "behind 4,096 tokens": (model, known, [long(0.0, tokens), long(1.0, tokens)]),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats + 1):
        for name, (who, costs, asked) in cases.items():
            seconds = {PLAIN: 0.0, ADAPTIVE: 0.0}
            for request in asked:
                order = [(PLAIN, None), (ADAPTIVE, control(costs))]
                for way, policy in order if repeat % 2 else order[::-1]:
                    seconds[way] += answer(who, policy, request)[1]
            if repeat:  # the first is a warm-up
                found[name].append(seconds[PLAIN] / seconds[ADAPTIVE])
            print(f"{name}: {seconds[PLAIN] / seconds[ADAPTIVE]:.3f}", flush=True)
    return found


def far(model: LanguageModel, prompt: BenchPrompt, context: int) -> Callable[[float, int], Request]:
    """A request behind so many tokens of varied text."""
    texts = [as_text(each.messages([])) for each in suite()]
    ids: list[int] = []
    for text in texts * 4:
        ids += model.tokenizer.encode(text + "\n\n")
        if len(ids) >= context:
            break
    ids = [*ids[:context], *model.encode(as_text(prompt.messages([])))]

    def make(temperature: float, tokens: int) -> Request:
        (request,) = requests(model, [prompt], temperature, tokens)
        room = model.target.context - tokens
        return Request(ids[-room:], request.sampling, max_tokens=tokens, eos=request.eos, seed=1)

    return make


# -- what advice is worth -----------------------------------------------------------------------------


def advised(tokens: int) -> list[dict[str, Any]]:
    """For each category of prompts that no head was trained on: advice from as many as it reads in its usual
    minute, against what its method then gives on as many others."""
    model, known = load(DEFAULT, everything=True)
    found = []
    for task, prompts in by_task(chosen(read(HELD_OUT), each=2 * ADVISED)).items():
        asked = requests(model, prompts, 0.0, tokens)
        first, second = (advise(model, known, half, seconds=1e9) for half in (asked[::2], asked[1::2]))
        best = first.candidates[0]
        then = next(c for c in second.candidates if c.method == best.method)
        found.append(
            {
                "task": task,
                "method": best.method,
                "expected": best.speedup,
                "low": best.low,
                "high": best.high,
                "measured": then.speedup,
            }
        )
        print(found[-1], flush=True)
    return found


# -- what deciding costs ------------------------------------------------------------------------------


def deciding(tokens: int) -> dict[str, float]:
    """Seconds of a step that the controller takes, under a profiler that times only its entries."""
    model, known = load(DEFAULT, everything=True)
    spent = dict.fromkeys(("plans", "record", "statistics", "step", "steps"), 0.0)

    class Timed(Controller):
        def plans(self, *given: Any) -> Any:
            started = time.perf_counter()
            try:
                return super().plans(*given)
            finally:
                spent["plans"] += time.perf_counter() - started

        def record(self, step: Step) -> None:
            started = time.perf_counter()
            super().record(step)
            own = time.perf_counter() - started
            if all(turn.take == 1 for turn in step.turns):
                spent["record"] += own
                spent["steps"] += 1
                spent["step"] += step.passing + step.other + sum(step.drafting.values()) + own

    own = deepcopy(known)
    policy = Timed(own.costs, own.priors)
    kept = []
    recorder = Recorder(model, [kept.append])
    for prompts in first_of(1).values():
        (request,) = requests(model, prompts, 0.0, tokens)
        answer(model, policy, request)  # a warm-up
        spent |= dict.fromkeys(spent, 0.0)
    for prompts in first_of(1).values():
        (request,) = requests(model, prompts, 0.0, tokens)
        made, _ = answer(model, policy, request)
        started = time.perf_counter()
        recorder(request, made)
        spent["statistics"] += time.perf_counter() - started
    steps = spent.pop("steps")
    return {name: each / steps for name, each in spent.items()}


def report(raw: dict[str, Any]) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """The table, and what was asked of each part that was measured."""
    cost = raw["deciding"]
    share = (cost["plans"] + cost["record"] + cost["statistics"]) / cost["step"]
    name = "share of a step that the controller and its statistics take"
    asked = [requirement(name, "< 0.02", share, share < 0.02)]
    for name, ratios in raw["floor"].items():
        middle = statistics.median(ratios)
        asked.append(requirement(f"over plain: {name}", "≥ 0.97", middle, middle >= 0.97))
    off = [abs(one["expected"] / one["measured"] - 1.0) for one in raw["advise"]]
    mean, worst = statistics.mean(off), max(off)
    asked.append(requirement("advice off the measured speed-up, mean", "≤ 0.10", mean, mean <= 0.1))
    asked.append(requirement("the same, worst task", "≤ 0.20", worst, worst <= 0.2))
    table: list[list[Any]] = []
    for model in (DEFAULT, PAIR):
        if model in raw:
            own_table, own_asked = judged(raw[model], model)
            table += own_table
            asked += own_asked
    return table, asked


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", action="store_true", help="the Qwen pair as well")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=2, help="of each task")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--fresh", action="store_true", help="forget the answers of an earlier run")
    parser.add_argument(
        "--only",
        choices=("grid", "floor", "advise", "cost"),
        help="measure one part anew, the others stay as they are stored",
    )
    given = parser.parse_args()
    if given.fresh:
        LOG.unlink(missing_ok=True)
    here = machine()
    sweeps = [Sweep(DEFAULT, DEPTHS, given.prompts, given.tokens, given.repeats)]
    if given.pair:
        sweeps.append(Sweep(PAIR, DEPTHS, 1, 40, 2, PAIR_TASKS))
    stored = RESULTS / "control.json"
    raw: dict[str, Any] = json.loads(stored.read_text())["raw"] if given.only else {}
    wanted = {given.only} if given.only else {"grid", "floor", "advise", "cost"}
    if "cost" in wanted:
        raw["deciding"] = deciding(given.tokens)
    if "floor" in wanted:
        raw["floor"] = floor(given.tokens, max(given.repeats, 3))
    if "advise" in wanted:
        raw["advise"] = advised(given.tokens)
    if "grid" in wanted:
        raw |= {sweep.model: grid(sweep) for sweep in sweeps}
    table, asked = report(raw)
    finish(
        __file__,
        machine=here,
        columns=[
            "model",
            "task",
            "temperature",
            "best γ",
            "its speed-up",
            "adaptive's",
            "adaptive over best",
            "95 %",
            "identical",
        ],
        rows=table,
        requirements=asked,
        raw=raw,
    )


if __name__ == "__main__":
    main()
