"""What is handed over to other engines: their files, the command that is printed, and plain refusals."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from taslak.drafters.formats import (
    CONFIGS as KINDS,
)
from taslak.drafters.formats import (
    Drafting,
    Eagle3Config,
    EagleConfig,
    Head,
    MedusaConfig,
    read_head,
    write_head,
)
from taslak.errors import ModelNotFound, OptionError
from taslak.interop.engines import ENGINES
from taslak.interop.handover import MARK, Handover, hand_over
from tests.support.checkpoint import CONTEXT, write_model
from tests.support.heads import CONFIGS, LAYER, random_head
from tests.support.interop import same_heads

MODEL = "org/target"
EVERY = {*KINDS, "ngram", "suffix", "draft-model"}
BIASED = replace(LAYER, qkv_bias=True)
PAPERS = {"layers": 8, "name": "tiny"}
"""A target of eight layers has the paper's three."""


def stored(tmp_path: Path, head: Head) -> str:
    write_head(tmp_path / "head", head)
    return str(tmp_path / "head")


def handed(tmp_path: Path, engine: str, draft: str | Head, **options: object) -> Handover:
    """A drafter handed over to `tmp_path / "out"`."""
    name = stored(tmp_path, draft) if isinstance(draft, Head) else draft
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    wanted = {"model": MODEL, "out": tmp_path / "out", "gamma": 3, **options}
    return hand_over(name, engine, **wanted)  # type: ignore[arg-type]


def options_of(made: Handover) -> dict[str, str]:
    """The flags of a command and their values."""
    words = shlex.split(made.command)
    return {word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("-")}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_an_answer_for_every_kind(engine: str) -> None:
    takes, instead = ENGINES[engine].takes.keys(), ENGINES[engine].instead.keys()
    assert takes | instead == EVERY
    assert not takes & instead
    assert all("use " in why or "train " in why for why in ENGINES[engine].instead.values())


def test_c34_what_an_engine_cannot_take_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for engine, taking in ENGINES.items():
        for kind in taking.instead.keys() & CONFIGS.keys():
            with pytest.raises(OptionError, match=rf"takes no drafter of kind {kind}: .*(use|train)"):
                handed(tmp_path, engine, random_head(CONFIGS[kind]))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("engine", "config", "match"),
    [
        ("vllm", EagleConfig(LAYER), "no bias of fc.*use sglang"),
        ("sglang", Eagle3Config(LAYER, norm_before_residual=True), "norm_before_residual.*use vllm"),
        ("sglang", Eagle3Config(BIASED), "no biases of q, k and v.*use vllm"),
        ("tensorrt-llm", Eagle3Config(LAYER, norm_before_residual=True), "norm_before_residual.*use vllm"),
        ("tensorrt-llm", Eagle3Config(BIASED), "no biases of q, k and v.*use vllm"),
        ("llama.cpp", Eagle3Config(LAYER, (0, 1, 2)), r"\(1, 3, 4\).*\(0, 1, 2\); use vllm"),
        ("llama.cpp", Eagle3Config(BIASED), "no biases of q, k and v.*use vllm"),
        ("tgi", MedusaConfig(2), "gamma is 3; these are 2 heads"),
    ],
)
def test_heads_that_an_engine_would_compute_wrongly_are_refused(
    tmp_path: Path, engine: str, config: EagleConfig, match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        handed(tmp_path, engine, random_head(config, **PAPERS))
    assert not (tmp_path / "out").exists()


def test_ngram_settings(tmp_path: Path) -> None:
    made = handed(tmp_path, "vllm", "ngram")
    assert (
        json.loads(options_of(made)["--speculative-config"])
        == made.settings
        == {
            "method": "ngram",
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 8,
            "num_speculative_tokens": 3,
        }
    )
    assert made.command.startswith(f"vllm serve {MODEL} ")
    assert json.loads((tmp_path / "out" / MARK).read_text()) == made.as_json()
    assert options_of(handed(tmp_path, "sglang", "ngram")) == {
        "-m": "sglang.launch_server",
        "--model-path": MODEL,
        "--speculative-algorithm": "NGRAM",
        "--speculative-num-draft-tokens": "4",
        "--speculative-ngram-max-bfs-breadth": "1",
        "--speculative-ngram-max-trie-depth": "11",
    }
    assert options_of(handed(tmp_path, "llama.cpp", "ngram", model="a.gguf")) == {
        "-m": "a.gguf",
        "--spec-type": "ngram-simple",
        "--spec-ngram-simple-size-n": "8",
        "--spec-ngram-simple-size-m": "3",
    }
    assert options_of(handed(tmp_path, "tgi", "ngram")) == {"--model-id": MODEL, "--speculate": "3"}
    made = handed(tmp_path, "tensorrt-llm", "ngram")
    assert Path(options_of(made)["--config"]).read_text() == (
        'speculative_config:\n  decoding_type: "NGram"\n  max_draft_len: 3\n  max_matching_ngram_size: 8\n'
        "disable_overlap_scheduler: true\n"
    )


def test_suffix_settings(tmp_path: Path) -> None:
    made = handed(tmp_path, "vllm", "suffix")
    assert made.settings["method"] == "suffix"
    assert "arctic-inference" in made.notes[0]
    made = handed(tmp_path, "tensorrt-llm", "suffix")
    assert made.settings == {"speculative_config": {"decoding_type": "SA", "max_draft_len": 3}}


def test_an_eagle3_head_for_vllm_is_read_again_as_it_was(tmp_path: Path) -> None:
    head = random_head(Eagle3Config(BIASED, (0, 1, 2), norm_before_residual=True), draft_ids=[3, 4, 60])
    made = handed(tmp_path, "vllm", head)
    assert same_heads(head, read_head(made.folder))
    assert made.settings == {
        "method": "eagle3",
        "model": str(tmp_path / "out"),
        "num_speculative_tokens": 3,
    }
    spoken = json.loads((made.folder / "config.json").read_text())["speculators_config"]
    assert spoken["verifier"]["name_or_path"] == MODEL
    assert spoken["proposal_methods"][0]["speculative_tokens"] == 3


def test_an_eagle3_head_for_the_others_is_in_specforges_layout(tmp_path: Path) -> None:
    head = random_head(Eagle3Config(LAYER, (1, 3, 4)), draft_ids=[3, 4, 60], **PAPERS)  # type: ignore[arg-type]
    made = handed(tmp_path, "sglang", head)
    assert options_of(made)["--speculative-algorithm"] == "EAGLE3"
    assert json.loads((made.folder / "config.json").read_text())["architectures"] == [
        "LlamaForCausalLMEagle3"
    ]
    assert same_heads(head, read_head(made.folder))
    made = handed(tmp_path, "tensorrt-llm", head)
    assert made.settings["speculative_config"]["eagle3_layers_to_capture"] == [1, 3, 4]
    target = write_model(tmp_path / "target")
    made = handed(tmp_path, "llama.cpp", head, target=str(target), model="a.gguf")
    assert options_of(made)["--spec-type"] == "draft-eagle3"
    assert shlex.split(made.before[0]) == [
        *("python", "convert_hf_to_gguf.py", str(made.folder), "--target-model-dir", str(target)),
        *("--outtype", "bf16", "--outfile", options_of(made)["--spec-draft-model"]),
    ]
    assert json.loads((made.folder / "config.json").read_text())["max_position_embeddings"] == CONTEXT


def test_eagle_for_sglang_has_its_token_map_and_its_tree(tmp_path: Path) -> None:
    drafting = Drafting(3, branch=4, tree="dynamic", nodes=10)
    head = replace(random_head(EagleConfig(LAYER), draft_ids=[3, 4, 60]), drafting=drafting)
    made = handed(tmp_path, "sglang", head, gamma=None)
    options = options_of(made)
    assert torch.load(options["--speculative-token-map"], weights_only=True) == [3, 4, 60]
    assert [options[f"--speculative-{n}"] for n in ("num-steps", "eagle-topk", "num-draft-tokens")] == [
        *("3", "4", "11")
    ]
    assert made.gamma_from == "what the head's file says it is used best with"


def test_eagle_without_a_bias_for_vllm(tmp_path: Path) -> None:
    head = random_head(EagleConfig(LAYER, fc_bias=False), draft_ids=[3, 4, 60])
    made = handed(tmp_path, "vllm", head)
    assert made.settings["method"] == "eagle"
    assert "3 of 61 tokens" in made.notes[0]
    assert same_heads(replace(head, draft_ids=None), read_head(made.folder))


def test_medusa_for_tgi_takes_the_targets_unembedding_where_it_used_it(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    head = random_head(MedusaConfig(3, 1, "target"), vocab_size=259, name=str(target))
    made = handed(tmp_path, "tgi", head)
    assert (made.folder / "medusa_lm_head.safetensors").is_file()
    assert options_of(made) == {"--model-id": str(made.folder), "--speculate": "3"}
    written = read_head(made.folder)
    assert written.config == MedusaConfig(3, 1, "own")
    assert written.target.name == MODEL


def test_draft_models(tmp_path: Path) -> None:
    draft = write_model(tmp_path / "draft")
    made = handed(tmp_path, "vllm", str(draft))
    assert (made.kind, made.settings["model"]) == ("draft-model", str(draft))
    assert options_of(handed(tmp_path, "sglang", str(draft)))["--speculative-algorithm"] == "STANDALONE"
    made = handed(tmp_path, "tensorrt-llm", "org/draft")
    assert made.settings["speculative_config"]["speculative_model"] == "org/draft"
    made = handed(tmp_path, "llama.cpp", str(draft))
    assert str(draft) in made.before[0]
    file = tmp_path / "draft.gguf"
    file.touch()
    made = handed(tmp_path, "llama.cpp", str(file))
    assert (made.before, made.settings["spec_draft_model"]) == ([], str(file))
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        with pytest.raises(OptionError, match=r"no \.gguf file"):
            handed(tmp_path, engine, str(file))
    with pytest.raises(OptionError, match="org/draft is none"):
        handed(tmp_path, "llama.cpp", "org/draft")
    with pytest.raises(ModelNotFound, match="nothing"):
        handed(tmp_path, "vllm", "nothing")


def test_the_targets_name_is_the_heads_own_where_others_know_it(tmp_path: Path) -> None:
    known = random_head(Eagle3Config(LAYER, (0, 1, 2)), name="org/name")
    assert handed(tmp_path, "vllm", known, model=None).model == "org/name"
    ours = random_head(Eagle3Config(LAYER, (0, 1, 2)), name="smollm2-135m-instruct")
    with pytest.raises(OptionError, match=r"'smollm2-135m-instruct' here: --model org/name"):
        handed(tmp_path, "vllm", ours, model=None)
    with pytest.raises(OptionError, match="name the target as vllm knows it: --model"):
        handed(tmp_path, "vllm", "ngram", model=None)


def test_other_files_are_not_written_over(tmp_path: Path) -> None:
    folder = stored(tmp_path, random_head(Eagle3Config(LAYER, (0, 1, 2))))
    with pytest.raises(OptionError, match="holds other files"):
        hand_over(folder, "vllm", model=MODEL, out=Path(folder))
    first = hand_over(folder, "vllm", model=MODEL, out=tmp_path / "out", gamma=1)
    assert hand_over(folder, "vllm", model=MODEL, out=tmp_path / "out", gamma=2).folder == first.folder
    with pytest.raises(OptionError, match="holds other files"):
        hand_over(folder, "sglang", model=MODEL, out=tmp_path / "out")


def test_an_engine_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'vlm'; expected one of vllm, sglang, llama\.cpp"):
        handed(tmp_path, "vlm", "ngram")
