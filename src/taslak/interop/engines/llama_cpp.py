"""llama.cpp of October 2026: flags say how to draft, and everything is a .gguf file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taslak.drafters.base import NGRAM
from taslak.drafters.formats import Eagle3Config, eagle3
from taslak.errors import OptionError
from taslak.interop.engines.engine import (
    EXIT,
    TRAIN_EAGLE3,
    Engine,
    Recipe,
    Wanted,
    check_biases,
    flags,
)

_CONVERTER = "convert_hf_to_gguf.py"
_WHERE = f"{_CONVERTER} is in llama.cpp's repository"


def _recipe(
    wanted: Wanted, settings: dict[str, Any], notes: list[str], before: list[list[str]] | None = None
) -> Recipe:
    file = wanted.model.endswith(".gguf")
    command = ["llama-server", "-m" if file else "-hf", wanted.model, *flags(settings)]
    if not file:
        notes = [*notes, "-hf takes a repository of .gguf files"]
    return Recipe(settings, command, before or [], notes)


def _ngram(wanted: Wanted) -> Recipe:
    shortest, longest = NGRAM
    settings = {
        "spec_type": "ngram-simple",
        "spec_ngram_simple_size_n": longest,
        "spec_ngram_simple_size_m": wanted.gamma,
    }
    note = f"it looks up n-grams of one length, {longest}; here they are {longest} down to {shortest}"
    return _recipe(wanted, settings, [note])


def _draft_model(wanted: Wanted) -> Recipe:
    draft, before = wanted.draft, []
    if not draft.endswith(".gguf"):
        if not Path(draft).is_dir():
            raise OptionError(f"llama.cpp reads .gguf files and {draft} is none; name the file, or a folder")
        draft = str(wanted.folder / "draft.gguf")
        before = [["python", _CONVERTER, wanted.draft, "--outfile", draft]]
    settings = {"spec_type": "draft-simple", "spec_draft_model": draft, "spec_draft_n_max": wanted.gamma}
    return _recipe(wanted, settings, [_WHERE] if before else [], before)


def _eagle3(wanted: Wanted) -> Recipe:
    head = wanted.made
    config = head.config
    assert isinstance(config, Eagle3Config)
    check_biases(config, "llama.cpp")
    layers = head.target.layers
    papers = None if layers is None else Eagle3Config(config.layer).features_of(layers)
    if config.captures not in (None, papers):
        raise OptionError(
            f"llama.cpp reads the layers of the paper, {papers or 'whichever they are'}, and this head reads "
            f"{config.captures}; use vllm or sglang, or train it without --captures"
        )
    # SpecForge's layout can't say norm_before_residual, and no more is known to be read of the other one
    if config.norm_before_residual:
        eagle3.write_speculators(wanted.folder, head, context=wanted.context, gamma=wanted.gamma)
    else:
        eagle3.write(wanted.folder, head, context=wanted.context)
    file = str(wanted.folder / "head.gguf")
    target = ["--target-model-dir", str(wanted.target_folder())]
    convert = ["python", _CONVERTER, str(wanted.folder), *target, "--outtype", "bf16", "--outfile", file]
    settings = {"spec_type": "draft-eagle3", "spec_draft_model": file, "spec_draft_n_max": wanted.gamma}
    return _recipe(wanted, settings, [_WHERE], [convert])


ENGINE = Engine(
    "llama.cpp",
    {"ngram": _ngram, "draft-model": _draft_model, "eagle3": _eagle3},
    {
        "suffix": "use ngram",
        "medusa": f"it has none; use a draft model, or {TRAIN_EAGLE3}",
        "eagle": f"of EAGLE it reads the third alone; {TRAIN_EAGLE3}, or use a draft model",
        "early-exit": EXIT,
    },
)
