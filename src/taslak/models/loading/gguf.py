"""GGUF files: their settings as a Hugging Face config, and their tensors in full precision.

Reading is lazy: the file is mapped, and a tensor is dequantised chunk by chunk when it is asked for. The
tokenizer in the file is read by `gguf_tokenizer.py`; what differs between architectures is data
(`architectures.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taslak.errors import CheckpointError
from taslak.models.loading.architectures import ARCHITECTURES, SETTINGS, TOP_TENSORS, Architecture

if TYPE_CHECKING:  # imported with the first file that is opened
    import gguf
    import torch

QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
# Big enough to keep the cores busy, small enough that all cores' chunks together are a few tens of MB.
CHUNK_ELEMENTS = 1 << 21
ROPE_FACTORS = "rope_freqs.weight"
# Every published Llama 3.x uses these; only the factor differs between them.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192


class GGUFModel:
    """One GGUF file, mapped into memory.

    Raises CheckpointError on opening where the file is damaged, split, or of an unsupported architecture;
    every later CheckpointError names the file and what is wrong with it too.
    """

    def __init__(self, path: Path) -> None:
        import gguf

        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except Exception as error:  # the reader meets damage with whatever numpy or struct happens to raise
            raise CheckpointError(
                f"{path} is not a whole GGUF file ({error}): it may be truncated or damaged, fetch it again"
            ) from error
        if self._reader.byte_order != "I":
            raise CheckpointError(f"{path} is written for machines of the other byte order")
        if int(self.value("split.count", 1)) > 1:
            raise CheckpointError(
                f"{path} is one piece of a split GGUF: merge the pieces into one file first"
            )
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def architecture_name(self) -> str:
        return str(self.value("general.architecture", "(none)"))

    @property
    def architecture(self) -> Architecture:
        """Raises CheckpointError for an architecture that isn't in the table."""
        if self.architecture_name not in ARCHITECTURES:
            raise CheckpointError(
                f"{self.path} has the architecture {self.architecture_name!r}; "
                f"supported are: {', '.join(ARCHITECTURES)}"
            )
        return ARCHITECTURES[self.architecture_name]

    def value(self, key: str, default: Any = None) -> Any:
        """A metadata value as a plain Python object (number, string, bool, list), or `default`."""
        entry = self._reader.fields.get(key)
        return default if entry is None else entry.contents()

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of "<architecture>.<key>"; raises CheckpointError if it is absent without a default."""
        value = self.value(f"{self.architecture_name}.{key}", default)
        if value is None:
            raise CheckpointError(f"{self.path} has no setting {self.architecture_name}.{key}")
        if isinstance(value, list):
            raise CheckpointError(
                f"{self.path}: {self.architecture_name}.{key} differs between layers, which is not supported"
            )
        return _short(value) if isinstance(value, float) else value

    def config(self) -> dict[str, Any]:
        """The contents of config.json, token ids and dtype aside."""
        architecture = self.architecture
        config: dict[str, Any] = {
            "architectures": [architecture.model_class],
            "model_type": architecture.model_type,
        }
        config |= {name: self.setting(key) for name, key in SETTINGS.items()}
        heads = config["num_attention_heads"]
        head_dim = self.setting("attention.key_length", config["hidden_size"] // heads)
        config |= {
            "num_key_value_heads": self.setting("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rope_theta": self.setting("rope.freq_base", 10000.0),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "vocab_size": int(self._tensor("token_embd.weight").shape[1]),
        } | dict(architecture.fixed)
        for key in ("rope.dimension_count", "attention.value_length"):
            if self.setting(key, head_dim) != head_dim:
                raise CheckpointError(
                    f"{self.path}: {key} is not the head size {head_dim}, which is not supported"
                )
        if self.setting("expert_count", 0):
            raise CheckpointError(f"{self.path} is a mixture of experts, which is not supported")
        if self.setting("attention.sliding_window", 0) not in (0, config["max_position_embeddings"]):
            raise CheckpointError(f"{self.path} uses a sliding attention window, which is not supported")
        if scaling := self._rope_scaling(head_dim, config["rope_theta"]):
            config["rope_scaling"] = scaling
        return config

    def tensors(self) -> Iterator[SourceTensor]:
        """Every weight under its Hugging Face name, in the file's order.

        Raises CheckpointError for a missing or unknown tensor, or one in an unsupported quantisation.
        """
        names = self._names()
        for name in names:
            self._tensor(name)
        for name, tensor in self._tensors.items():
            if name == ROPE_FACTORS:
                continue  # went into the config
            if name not in names:
                raise CheckpointError(
                    f"{self.path} has the tensor {name}, which a {self.architecture_name} model does not have"
                )
            if tensor.tensor_type.name not in QUANTISATIONS:
                raise CheckpointError(
                    f"{self.path}: the tensor {name} is quantised as {tensor.tensor_type.name}; "
                    f"supported are: {', '.join(QUANTISATIONS)}"
                )
            shape = tuple(int(n) for n in reversed(tensor.shape))
            heads = self.architecture.permuted.get(name.split(".", 2)[-1])
            rows = tensor.data.reshape(-1, tensor.data.shape[-1])
            yield SourceTensor(names[name], shape, rows, tensor.tensor_type, self._head_count(heads))

    def quantisations(self) -> list[str]:
        """How the matrices of the layers are stored, each kind once."""
        kinds = {
            tensor.tensor_type.name
            for name, tensor in self._tensors.items()
            if name.startswith("blk.") and len(tensor.shape) == 2
        }
        return sorted(kinds)

    def _names(self) -> dict[str, str]:
        """The names of all tensors the architecture needs: in the GGUF -> in the Hugging Face layout."""
        names = {
            f"blk.{layer}.{theirs}": f"model.layers.{layer}.{ours}"
            for layer in range(self.setting("block_count"))
            for theirs, ours in self.architecture.layer_tensors.items()
        }
        tied = "output.weight" not in self._tensors
        return {
            theirs: ours for theirs, ours in TOP_TENSORS.items() if not (tied and "lm_head" in ours)
        } | names

    def _tensor(self, name: str) -> gguf.ReaderTensor:
        if name not in self._tensors:
            raise CheckpointError(
                f"{self.path} has no tensor {name}, which a {self.architecture_name} model needs"
            )
        return self._tensors[name]

    def _head_count(self, config_name: str | None) -> int | None:
        if config_name is None:
            return None
        heads = self.setting("attention.head_count")
        return int(self.setting("attention.head_count_kv", heads) if "key_value" in config_name else heads)

    def _rope_scaling(self, head_dim: int, theta: float) -> dict[str, Any] | None:
        """The rope_scaling entry of config.json; raises CheckpointError for a kind it can't express."""
        kind = self.value(f"{self.architecture_name}.rope.scaling.type", "none")
        factor = self.setting("rope.scaling.factor", self.setting("rope.scale_linear", 1.0))
        if ROPE_FACTORS in self._tensors:
            stored = np.asarray(self._tensors[ROPE_FACTORS].data, dtype=np.float64).reshape(-1)
            factor = _short(float(stored.max()))
            if not np.allclose(stored, llama3_factors(head_dim, theta, factor), rtol=1e-4):
                raise CheckpointError(f"{self.path}: {ROPE_FACTORS} holds a scaling other than Llama 3's")
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LLAMA3_LOW,
                "high_freq_factor": LLAMA3_HIGH,
                "original_max_position_embeddings": LLAMA3_ORIGINAL,
            }
        if kind == "none" and factor in (0.0, 1.0):
            return None
        if kind in ("linear", "none"):
            return {"rope_type": "linear", "factor": factor}
        raise CheckpointError(f"{self.path} uses the rotary scaling {kind!r}; supported are: linear, llama3")


@dataclass(frozen=True)
class SourceTensor:
    """One tensor still as the file holds it: `rows` [rows, row bytes or values], quantised.

    `rotary_heads` is set where the rows of each head lie in ggml's rotary order (pairs side by side) and
    have to be put back into halves.
    """

    name: str
    shape: tuple[int, ...]
    rows: npt.NDArray[Any]
    quantisation: gguf.GGMLQuantizationType
    rotary_heads: int | None

    def pieces(self, multiple: int = 1) -> list[npt.NDArray[Any]]:
        """The rows as they are stored, in the Hugging Face order, a few million weights at a time.

        multiple: of how many rows every piece but the last is to be
        """
        rows = self.rows
        if self.rotary_heads is not None:
            pairs = np.arange(len(rows)).reshape(self.rotary_heads, -1, 2)  # [heads, head_dim / 2, 2]
            rows = rows[pairs.swapaxes(1, 2).reshape(-1)]
        step = max(1, CHUNK_ELEMENTS // self.shape[-1] // multiple) * multiple
        return [rows[start : start + step] for start in range(0, len(rows), step)]

    def chunks(self, dtype: torch.dtype) -> Iterator[memoryview]:
        """The tensor's bytes as `dtype`, in order, in pieces of a few MB; uses every core."""
        pieces = self.pieces()
        convert = partial(_dequantise, quantisation=self.quantisation, dtype=dtype)
        workers = min(len(pieces), os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:
            # In batches, so that no more than one chunk a core is ever held.
            for start in range(0, len(pieces), workers):
                yield from pool.map(convert, pieces[start : start + workers])


def _dequantise(
    rows: npt.NDArray[Any], quantisation: gguf.GGMLQuantizationType, dtype: torch.dtype
) -> memoryview:
    """Quantised rows as the raw bytes of `dtype` (rounded to nearest even)."""
    import gguf
    import torch

    # Unquantised rows come back as the read-only mapping itself, which torch won't take: hence "W".
    values = np.require(gguf.dequantize(rows, quantisation), np.float32, ["C", "W"])
    if dtype == torch.float32:
        return values.data.cast("B")
    # numpy has no bfloat16: pass the bits through as int16.
    bits: npt.NDArray[np.int16] = torch.from_numpy(values).to(dtype).view(torch.int16).numpy()
    return bits.data.cast("B")


def llama3_factors(head_dim: int, theta: float, factor: float) -> npt.NDArray[np.float64]:
    """What a GGUF of Llama 3.x stores as rope_freqs.weight: each frequency's divisor. [head_dim / 2]"""
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelengths = 2 * math.pi / frequencies
    smooth = (LLAMA3_ORIGINAL / wavelengths - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    smooth = smooth.clip(0.0, 1.0)  # 0: long waves, divided by the whole factor; 1: short ones, left alone
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _short(value: float) -> float:
    """The shortest decimal that is the same float32: 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(value)))
