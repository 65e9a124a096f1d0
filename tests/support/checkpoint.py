"""A tiny random model as a folder of files, with a real tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from taslak.models.config import DecoderConfig
from tests.support.tiny import random_weights, tiny_config

CONTEXT = 128
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def write_model(folder: Path, *, seed: int = 0, extra: str = "Ω", context: int = CONTEXT) -> Path:
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
    config = tiny_config(vocab_size=len(tokens), context=context)
    return write_weights(folder, config, random_weights(config, seed))


def llama_settings(config: DecoderConfig) -> dict[str, Any]:
    """What a llama's config.json calls its shape."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.inner_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
    }


def write_weights(folder: Path, config: DecoderConfig, weights: Mapping[str, Tensor]) -> Path:
    """A llama's config.json and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                **llama_settings(config),
                "head_dim": config.head_size,
                "tie_word_embeddings": False,
            }
        )
    )
    save_file(dict(weights), folder / "model.safetensors")
    return folder
