"""Writing the files the tests read: wheels, GGUF values, and a small byte-level vocabulary."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gguf

BYTE_ALPHABET = sorted({*range(33, 127), *range(161, 173), *range(174, 256)})


def write_wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    stem = name.replace("-", "_")
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    info = f"{stem}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def byte_level_vocabulary() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and token types of a small byte-level vocabulary with special and padding tokens."""
    letters = [chr(byte) for byte in BYTE_ALPHABET] + [chr(256 + n) for n in range(256 - len(BYTE_ALPHABET))]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "Ġw o"]
    words = [merge.replace(" ", "") for merge in merges]
    tokens = [*letters, *words, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>", "[PAD0]", "[PAD1]"]
    types = [1] * (len(letters) + len(words)) + [3, 3, 3, 4, 5, 5]
    return tokens, merges, types


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_names(config: Any) -> dict[str, str]:
    """Hugging Face tensor names -> GGUF names, by the gguf package's own map."""
    kind = gguf.MODEL_ARCH.LLAMA if config.model_type == "llama" else gguf.MODEL_ARCH.QWEN2
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    parts = ["input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    parts += [f"self_attn.{part}_proj" for part in "qkvo"]
    ours = ["model.embed_tokens", "model.norm", "lm_head"]
    ours += [f"model.layers.{layer}.{part}" for layer in range(config.num_hidden_layers) for part in parts]
    suffixes = (".weight", ".bias")
    return {name + suffix: names.get_name(name) + suffix for name in ours for suffix in suffixes}
