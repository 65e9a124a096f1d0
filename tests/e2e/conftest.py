"""A tiny random model in a folder, and the command line run in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from taslak.cli import main
from tests.support.tiny import random_weights, tiny_config

CONTEXT = 128
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return self.err.splitlines()


Taslak = Callable[..., Result]


@pytest.fixture(autouse=True)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a tiny model is packed into does not land in the user's cache; real models come from there."""
    if request.node.get_closest_marker("integration") is None:
        monkeypatch.setenv("TASLAK_HOME", str(tmp_path_factory.getbasetemp() / "home"))


@pytest.fixture
def taslak(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Taslak:
    """Runs the command line: taslak("generate", "Hi", stdin="")."""

    def run(*args: str, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(args)
        captured = capsys.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    return run


def write_model(folder: Path, *, seed: int = 0, extra: str = "Ω") -> Path:
    """A random llama of a few thousand weights over single bytes, with a chat template."""
    folder.mkdir(parents=True)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), extra, "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = tiny_config(vocab_size=len(tokens), context=CONTEXT)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": config.vocab_size,
                "hidden_size": config.hidden_size,
                "intermediate_size": config.inner_size,
                "num_hidden_layers": config.layers,
                "num_attention_heads": config.heads,
                "num_key_value_heads": config.kv_heads,
                "head_dim": config.head_size,
                "max_position_embeddings": config.context,
                "rms_norm_eps": config.norm_eps,
                "tie_word_embeddings": False,
            }
        )
    )
    save_file(random_weights(config, seed), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model's folder."""
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))
