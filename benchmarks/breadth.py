"""Breadth: model families, Gemma, draft models with other tokenizers, wrapped models; beside transformers.

    python benchmarks/breadth.py [--only families gemma cross wrapped] [--fresh] [--repeats 3] [--tokens 128]

families  Each family of `Decoder` as a random model made from a transformers configuration: how far logits
          are apart on a tiny one, in float32; on a wider one, 128 greedy tokens of both libraries and of a
          look-up, and the tokens a second, plain.
gemma     Gemma 3 270M on real prompts, plain and speculative, in both libraries.
cross     SmolLM2 135M drafts for Qwen2.5-Coder 1.5B and for Gemma 3 270M: whether texts are identical to
          plain ones, acceptance, and speed against plain, with a fixed depth and as a user gets it.
wrapped   Architectures that `Decoder` doesn't have, through `taslak.from_transformers`, beside their own
          assisted generation in transformers, where there is one, with the same draft model and depth.

What is compared runs in turns, in one process. It is kept as it comes (by commit), and a run that was stopped
goes on; --only runs some sections, and shows what is there of the others.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from harness import RESULTS, finish, interleave, machine, requirement, versions
from prompts import PROMPTS

import taslak
from taslak.bench.log import Log, digest
from taslak.engine import LanguageModel
from taslak.errors import UserError
from taslak.models.loading import resolve
from taslak.models.target import chain_rows

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' random models

GEMMA, QWEN, SMOL = "gemma-3-270m", "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"
GAMMA = 4
TOKENS = 128
CLOSE = 1e-4
"""Logits of a tiny model in float32 differ by less."""
WIDER = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
"""Wide enough that matrix products take the better part of a pass."""
WIDER_GPT2 = {"vocab_size": 4096, "n_embd": 256, "n_head": 8}
SCALE = 8
"""The wrapped models are so many times as wide as the tests' tiny ones."""
WIDTHS = ("hidden_size", "n_embd", "d_model", "intermediate_size", "ffn_dim", "ffn_hidden_size")
WIDTHS += ("word_embed_proj_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "rotary_dim")

Run = tuple[float, list[int], Any]
"""Seconds, the answer's ids, acceptance counts where there are any."""


@dataclass(frozen=True)
class Settings:
    repeats: int
    tokens: int


class Section:
    """What of the log belongs to one section; measures what isn't there yet."""

    def __init__(self, name: str, log: Log, about: Any) -> None:
        self.name = name
        self.rows: dict[str, Any] = {}
        self._log = log
        self._about = about

    def measure(self, item: str, measured: Callable[[], dict[str, Any]], run: bool) -> None:
        key = digest(self.name, item, self._about)
        found = self._log.get(key)
        if found is None and run:
            print(f"{self.name}: {item}", flush=True)
            found = measured()
            self._log.put(key, found)
            gc.collect()
        if found is not None:
            self.rows[item] = found


# -- both libraries -----------------------------------------------------------------------------------------


def ours(model: LanguageModel, prompt: Any, tokens: int, **options: Any) -> Run:
    start = time.perf_counter()
    answer = model.generate(prompt, max_tokens=tokens, **options)
    return time.perf_counter() - start, list(answer.ids), answer.counts


def theirs(model: Any, ids: Sequence[int], tokens: int, **options: Any) -> Run:
    given = torch.tensor([list(ids)])
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, do_sample=False, **options
        )
    return time.perf_counter() - start, output[0, len(ids) :].tolist(), None


def loaded(folder: Any, dtype: torch.dtype) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.update(temperature=None, top_p=None, top_k=None)
    return model


def in_turns(sides: dict[str, Callable[[int], Run]], settings: Settings) -> dict[str, dict[str, Any]]:
    """By side: seconds of each repeat, the ids, acceptance."""
    warm = {name: (lambda side=side: side(4)) for name, side in sides.items()}
    timed = {name: (lambda side=side: side(settings.tokens)) for name, side in sides.items()}
    runs = interleave(timed, settings.repeats, warm_up=warm, progress=lambda _: None)
    found = {}
    for name, results in runs.items():
        seconds, ids, counts = [round(r[0], 5) for r in results], results[-1][1], results[-1][2]
        found[name] = {
            "seconds": seconds,
            "ids": ids,
            "steady": all(r[1] == ids for r in results),
            "rate": len(ids) / statistics.median(seconds),
            "acceptance": None if counts is None else counts.acceptance_rate,
            "tau": None if counts is None else counts.tau,
        }
    return found


def alike(found: dict[str, dict[str, Any]], one: str, *others: str) -> bool:
    """Whether these sides gave the same ids, every time."""
    sides = [found[name] for name in (one, *others)]
    return all(side["steady"] and side["ids"] == sides[0]["ids"] for side in sides)


def without_ids(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: {key: value for key, value in side.items() if key != "ids"} for name, side in found.items()}


# -- families -----------------------------------------------------------------------------------------------


def families(section: Section, settings: Settings, run: bool) -> None:
    from tests.support import families as made

    for case in made.FAMILY_CASES:
        section.measure(case, lambda case=case: family(made, case, settings), run)


def family(made: Any, case: str, settings: Settings) -> dict[str, Any]:
    wide = made.tiny_transformers(case, **(WIDER_GPT2 if case == "gpt2" else WIDER))
    prompt = torch.randint(4096, (16,), generator=torch.Generator().manual_seed(1)).tolist()
    with scratch() as folder:
        wide.save_pretrained(folder)
        numbers(folder, 4096)
        options = {"method": "ngram", "gamma": GAMMA}
        full = taslak.load(str(folder), dtype="float32", **options)
        half = taslak.load(str(folder), dtype="bfloat16", **options)
        peer = {"float32": loaded(folder, torch.float32), "bfloat16": loaded(folder, torch.bfloat16)}
        sides: dict[str, Callable[[int], Run]] = {
            f"transformers {dtype}": lambda n, model=model: theirs(model, prompt, n)
            for dtype, model in peer.items()
        }
        for dtype, model in (("float32", full), ("bfloat16", half)):
            sides[f"taslak {dtype}"] = lambda n, model=model: ours(model, prompt, n, speculate=False)
        sides["taslak float32, look-up"] = lambda n: ours(full, prompt, n)
        found = in_turns(sides, settings)
    return {
        "difference": logit_difference(made, case),
        "identical": alike(found, "transformers float32", "taslak float32", "taslak float32, look-up"),
        **without_ids(found),
    }


def logit_difference(made: Any, case: str) -> float:
    """The largest, over 48 positions: past every window of the tiny models."""
    from taslak.models.decoder import Decoder

    model = made.tiny_transformers(case)
    decoder = Decoder(*made.ours(model), exact=False)
    ids = torch.randint(61, (48,), generator=torch.Generator().manual_seed(2)).tolist()
    cache = decoder.allocate(len(ids))
    logits = decoder.forward([chain_rows(cache, ids, len(ids))]).logits
    cache.release()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    return float((logits - expected).abs().max())


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for a model, and a cache folder for what is made of it."""
    before = os.environ.get("TASLAK_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TASLAK_HOME"] = f"{folder}/home"
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["TASLAK_HOME"]
            else:
                os.environ["TASLAK_HOME"] = before


def numbers(folder: Path, size: int) -> None:
    """A tokenizer whose tokens are numbers."""
    from tokenizers import Tokenizer, models

    words = {str(id): id for id in range(size)}
    Tokenizer(models.WordLevel(words, unk_token="0")).save(str(folder / "tokenizer.json"))


# -- Gemma, and other tokenizers ----------------------------------------------------------------------------


def runs_here(name: str) -> bool:
    """Whether the decoder has this model's family."""
    from taslak.models.config import DecoderConfig

    try:
        DecoderConfig.from_folder(resolve(name, dtype=torch.bfloat16))
    except UserError as error:
        print(f"{name} is left out: {error}", flush=True)
        return False
    return True


def gemma(section: Section, settings: Settings, run: bool) -> None:
    """In bfloat16, both; and ours as it comes by default, in the file's own widths."""
    if run and not runs_here(GEMMA):
        return
    made: list[Callable[[str], dict[str, Any]]] = []
    for label, prompt in PROMPTS.items():

        def measured(prompt: str = prompt) -> dict[str, Any]:
            if not made:
                made.append(gemma_models(settings))
            return made[0](prompt)

        section.measure(label, measured, run)


def gemma_models(settings: Settings) -> Callable[[str], dict[str, Any]]:
    peer = loaded(resolve(GEMMA, dtype=torch.bfloat16), torch.bfloat16)
    default = taslak.load(GEMMA)
    narrow = {
        "look-up": taslak.load(GEMMA, method="suffix", gamma=GAMMA, target=default.pretrained),
        "early exit": taslak.load(GEMMA, exit_layer=16, gamma=GAMMA, target=default.pretrained),
        "default": default,
    }
    half = taslak.load(GEMMA, method="suffix", gamma=GAMMA, dtype="bfloat16")

    def answer(prompt: str) -> dict[str, Any]:
        ids = default.encode(prompt)
        sides: dict[str, Callable[[int], Run]] = {
            "transformers plain": lambda n: theirs(peer, ids, n),
            "transformers look-up": lambda n: theirs(
                peer, ids, n, prompt_lookup_num_tokens=GAMMA, max_matching_ngram_size=8
            ),
            "taslak bfloat16 plain": lambda n: ours(half, ids, n, speculate=False),
            "taslak bfloat16 look-up": lambda n: ours(half, ids, n),
            "taslak plain": lambda n: ours(default, ids, n, speculate=False),
        }
        for name, model in narrow.items():
            sides[f"taslak {name}"] = lambda n, model=model: ours(model, ids, n)
        found = in_turns(sides, settings)
        same = alike(found, "taslak plain", *(f"taslak {name}" for name in narrow))
        same = same and alike(found, "taslak bfloat16 plain", "taslak bfloat16 look-up")
        return {"identical": same, **without_ids(found)}

    return answer


def cross(section: Section, settings: Settings, run: bool) -> None:
    for name in (QWEN, GEMMA):
        if run and not runs_here(name):
            continue
        made: list[Callable[[str], dict[str, Any]]] = []
        for label, prompt in PROMPTS.items():

            def measured(
                name: str = name, made: list[Callable[[str], dict[str, Any]]] = made, prompt: str = prompt
            ) -> dict[str, Any]:
                if not made:
                    made.append(pair(name, settings))
                return made[0](prompt)

            section.measure(f"{name}: {label}", measured, run)


def pair(name: str, settings: Settings) -> Callable[[str], dict[str, Any]]:
    """A target and SmolLM2: each way with a fixed depth, and what a user gets, a look-up in front."""
    default = taslak.load(name, draft=SMOL, cross_vocab=True)
    models = {"default": default}
    for way in ("tli", "slem", "cross-vocab"):
        models[way] = taslak.load(name, draft=SMOL, method=way, gamma=GAMMA, target=default.pretrained)

    def answer(prompt: str) -> dict[str, Any]:
        sides: dict[str, Callable[[int], Run]] = {
            "plain": lambda n: ours(default, prompt, n, speculate=False)
        }
        for way, model in models.items():
            sides[way] = lambda n, model=model: ours(model, prompt, n)
        found = in_turns(sides, settings)
        return {"identical": alike(found, "plain", *models), **without_ids(found)}

    return answer


# -- wrapped models -----------------------------------------------------------------------------------------


ASSISTED = "transformers assisted"
FIXED = {"gemma3n_text", "gemma4_text"}
"""Their tables for each layer have sizes of their own, which don't grow with the rest."""


def wrapped(section: Section, settings: Settings, run: bool) -> None:
    from tests.support import foreign

    for kind in sorted({*foreign.ARCHITECTURES} - FIXED):
        section.measure(kind, lambda kind=kind: wrap(foreign, kind, settings), run)


def wrap(foreign: Any, kind: str, settings: Settings) -> dict[str, Any]:
    """The draft model is the same one, a little disturbed: it costs as much on both sides."""
    tiny = foreign.ARCHITECTURES[kind]
    wide = {key: _wider(value) if key in WIDTHS else value for key, value in tiny.items()}
    longer = {key: 512 for key in ("max_position_embeddings", "n_positions", "max_seq_len") if key in tiny}
    model = foreign.build(kind, {**wide, **longer, "vocab_size": 4096})
    draft = foreign.near(model, noise=0.003)
    mine = taslak.from_transformers(model, draft=draft, method="draft-model", gamma=GAMMA)
    config = draft.generation_config
    config.num_assistant_tokens = GAMMA
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    prompt = torch.randint(2, 4096, (16,), generator=torch.Generator().manual_seed(1)).tolist()
    sides: dict[str, Callable[[int], Run]] = {
        "transformers plain": lambda n: theirs(model, prompt, n),
        ASSISTED: lambda n: theirs(model, prompt, n, assistant_model=draft),
        "taslak plain": lambda n: ours(mine, prompt, n, speculate=False),
        "taslak assisted": lambda n: ours(mine, prompt, n),
    }
    refused = None
    try:
        sides[ASSISTED](4)
    except (RuntimeError, ValueError) as error:  # of some architectures transformers drafts for none
        refused = str(error)
        del sides[ASSISTED]
    found = in_turns(sides, settings)
    same = alike(found, "transformers plain", "taslak plain", "taslak assisted")
    return {"identical": same, "refused": refused, **without_ids(found)}


def _wider(width: Any) -> Any:
    """A width, or one for each layer."""
    return [_wider(each) for each in width] if isinstance(width, list | tuple) else width * SCALE


# -- what came of it ----------------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[Section, Settings, bool], None]] = {
    "families": families,
    "gemma": gemma,
    "cross": cross,
    "wrapped": wrapped,
}
COLUMNS = [
    "section",
    "what",
    "identical",
    "largest difference of logits",
    "taslak",
    "tokens/s",
    "acceptance rate",
]
COLUMNS += ["beside", "its tokens/s", "ratio"]
BESIDE = {
    "families": [
        ("taslak float32", "transformers float32"),
        ("taslak bfloat16", "transformers bfloat16"),
    ],
    "gemma": [
        ("taslak bfloat16 plain", "transformers plain"),
        ("taslak bfloat16 look-up", "transformers look-up"),
        ("taslak plain", "transformers plain"),
        ("taslak look-up", "transformers look-up"),
        ("taslak early exit", "transformers plain"),
        ("taslak default", "transformers look-up"),
    ],
    "cross": [(way, "plain") for way in ("tli", "slem", "cross-vocab", "default")],
    "wrapped": [
        ("taslak plain", "transformers plain"),
        ("taslak assisted", ASSISTED),
    ],
}
"""What of a section is set against what."""


def table(sections: dict[str, Section]) -> list[list[Any]]:
    rows = []
    for name, section in sections.items():
        for item, found in section.rows.items():
            for mine, other in BESIDE[name]:
                if other not in found:
                    continue
                rate, beside = found[mine]["rate"], found[other]["rate"]
                acceptance = found[mine]["acceptance"]
                difference = found.get("difference")
                rows.append(
                    [
                        *(name, item, found["identical"], "–" if difference is None else f"{difference:.1e}"),
                        *(
                            mine,
                            rate,
                            "–" if acceptance is None else acceptance,
                            other,
                            beside,
                            rate / beside,
                        ),
                    ]
                )
    return rows


def required(sections: dict[str, Section], asked: Sequence[str]) -> list[dict[str, Any]]:
    """Of every section that was asked for, or is there."""
    found = []
    for name, section in sections.items():
        if not section.rows:
            if name in asked:
                found.append(requirement(f"{name}: measured", "yes", 0, False))
            continue
        identical = sum(row["identical"] for row in section.rows.values())
        every = len(section.rows)
        found.append(requirement(f"{name}: identical, of {every}", f"{every}", identical, identical == every))
        found += WHAT_ELSE[name](section.rows)
    return found


def slowest(rows: dict[str, Any], mine: str, other: str) -> float:
    return min(float(row[mine]["rate"] / row[other]["rate"]) for row in rows.values() if other in row)


def of_families(rows: dict[str, Any]) -> list[dict[str, Any]]:
    worst = max(row["difference"] for row in rows.values())
    ratio = slowest(rows, "taslak bfloat16", "transformers bfloat16")
    return [
        # in units of the bound, which a table of three digits would not show
        requirement("families: largest difference of logits / 1e-4", "< 1", worst / CLOSE, worst < CLOSE),
        requirement("families, bfloat16: speed over transformers, slowest", "≥ 1.0", ratio, ratio >= 1.0),
    ]


def of_gemma(rows: dict[str, Any]) -> list[dict[str, Any]]:
    plain = slowest(rows, "taslak plain", "transformers plain")
    drafted = slowest(rows, "taslak default", "transformers look-up")
    return [
        requirement("gemma, plain: speed over transformers, slowest prompt", "≥ 1.0", plain, plain >= 1.0),
        requirement(
            "gemma, speculative: speed over transformers, slowest prompt", "≥ 1.0", drafted, drafted >= 1.0
        ),
    ]


def of_cross(rows: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name in (QWEN, GEMMA):
        mine = {item: row for item, row in rows.items() if item.startswith(name)}
        if not mine:
            found.append(requirement(f"cross, {name}: measured", "yes", 0, False))
            continue
        rates = [row["cross-vocab"]["acceptance"] for row in mine.values()]
        speed = statistics.geometric_mean(
            row["default"]["rate"] / row["plain"]["rate"] for row in mine.values()
        )
        mean = statistics.mean(rates)
        found += [
            requirement(f"cross, {name}: acceptance rate, mean over prompts", "> 0", mean, mean > 0),
            requirement(
                f"cross, {name}: default over plain, mean of prompts", "≥ 0.95", speed, speed >= 0.95
            ),
        ]
    return found


def of_wrapped(rows: dict[str, Any]) -> list[dict[str, Any]]:
    ratio = slowest(rows, "taslak assisted", ASSISTED)
    both = sum(ASSISTED in row for row in rows.values())
    return [
        requirement("wrapped: architectures beside assisted generation", "≥ 8", both, both >= 8),
        requirement("wrapped: speed over assisted generation, slowest", "≥ 1.0", ratio, ratio >= 1.0),
    ]


WHAT_ELSE = {"families": of_families, "gemma": of_gemma, "cross": of_cross, "wrapped": of_wrapped}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--fresh", action="store_true", help="measure anew what is kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    here = machine()
    settings = Settings(given.repeats, given.tokens)
    about = [versions()["commit"], given.repeats, given.tokens]
    RESULTS.mkdir(exist_ok=True)
    log = Log(RESULTS / "breadth.runs.jsonl", fresh=given.fresh)
    sections = {name: Section(name, log, about) for name in SECTIONS}
    for name, measure in SECTIONS.items():
        try:
            measure(sections[name], settings, name in given.only)
        except ImportError as error:  # --only must work where another section can't
            if name in given.only:
                raise
            print(f"{name} is left out: {error}", flush=True)
    finish(
        __file__,
        columns=COLUMNS,
        rows=table(sections),
        raw={name: section.rows for name, section in sections.items()},
        requirements=required(sections, given.only),
        machine=here,
        gamma=GAMMA,
        tokens=given.tokens,
    )


if __name__ == "__main__":
    main()
