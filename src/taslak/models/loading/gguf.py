"""GGUF files: their settings as a Hugging Face config, and their tensors in full precision.

Reading is lazy: the file is mapped, and a tensor is dequantised chunk by chunk when it is asked for. The
tokenizer in the file is read by `gguf_tokenizer.py`; what differs between architectures is data
(`taslak.models.families`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taslak.errors import CheckpointError
from taslak.models.config import DecoderConfig
from taslak.models.families import ARCHITECTURES, Family, Gguf, why_not
from taslak.models.families.family import ROTATED, WINDOW
from taslak.models.loading.adopt import head_rows
from taslak.models.loading.gguf_tensor import SourceTensor

if TYPE_CHECKING:  # imported with the first file that is opened
    import gguf

QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
ROPE_FACTORS = "rope_freqs.weight"
LONGROPE_FACTORS = {f"{length}_factor": f"rope_factors_{length}.weight" for length in ("short", "long")}
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
    def family(self) -> Family:
        """Raises CheckpointError for an architecture that isn't in the table."""
        name = self.architecture_name
        if name not in ARCHITECTURES:
            reason = why_not(name)
            raise CheckpointError(
                f"{self.path} has the architecture {name!r}{f': it {reason}' if reason else ''}; "
                f"supported are: {', '.join(ARCHITECTURES)}"
            )
        return ARCHITECTURES[name]

    @property
    def _gguf(self) -> Gguf:
        gguf = self.family.gguf
        assert gguf is not None
        return gguf

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
        gguf = self._gguf
        config: dict[str, Any] = {"architectures": [gguf.model_class], "model_type": self.family.model_type}
        config |= {name: self.setting(key) for name, key in gguf.settings.items()}
        heads = self.setting("attention.head_count")
        head_dim = self.setting("attention.key_length", self.setting("embedding_length") // heads)
        config |= {
            "num_key_value_heads": self.setting("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rope_theta": self.setting("rope.freq_base", 10000.0),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "vocab_size": int(self._tensor("token_embd.weight").shape[1]),
            **gguf.fixed,
            **gguf.read(self),
        }
        for key in (ROTATED, "attention.value_length"):
            if key not in gguf.understood and self.setting(key, head_dim) != head_dim:
                raise CheckpointError(
                    f"{self.path}: {key} is not the head size {head_dim}, which is not supported"
                )
        if self.setting("expert_count", 0):
            raise CheckpointError(f"{self.path} is a mixture of experts, which is not supported")
        no_window = (0, self.setting("context_length"))
        if WINDOW not in gguf.understood and self.setting(WINDOW, 0) not in no_window:
            raise CheckpointError(f"{self.path} uses a sliding attention window, which is not supported")
        if scaling := self._rope_scaling(head_dim, config["rope_theta"]):
            config["rope_scaling"] = scaling
        return config

    @cached_property
    def decoder(self) -> DecoderConfig:
        """What its config.json says, read."""
        return DecoderConfig.from_hf(self.config())

    def tensors(self) -> Iterator[SourceTensor]:
        """Every weight under its Hugging Face name, in the file's order; stacked matrices stay stacked.

        Raises CheckpointError for a missing or unknown tensor, or one in an unsupported quantisation.
        """
        names = self._names()
        for name in names:
            self._tensor(name)
        for name, tensor in self._tensors.items():
            if name in (ROPE_FACTORS, *LONGROPE_FACTORS.values()):
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
            rows = tensor.data.reshape(-1, tensor.data.shape[-1])
            yield SourceTensor(
                names[name], shape, rows, tensor.tensor_type, self._paired_rows(name, shape[0])
            )

    def stored(self) -> Iterator[SourceTensor]:
        """The same arranged as a checkpoint in Hugging Face's layout has them."""
        return map(self._as_stored, self.tensors())

    def _as_stored(self, tensor: SourceTensor) -> SourceTensor:
        family = self.family
        if family.turns(tensor.name, tensor.shape):
            return replace(tensor, shape=tensor.shape[::-1], turned=True)
        if family.norm_offset and tensor.name.endswith("norm.weight"):
            return replace(tensor, shift=-family.norm_offset)
        count = len(family.ours(tensor.name))
        if family.by_head and count > 1:
            places = [row for number in range(count) for row in head_rows(self.decoder, number, count)]
            return replace(tensor, order=np.argsort(places))
        return tensor

    def quantisations(self) -> list[str]:
        """How the matrices of the layers are stored, each kind once."""
        kinds = {
            tensor.tensor_type.name
            for name, tensor in self._tensors.items()
            if name.startswith("blk.") and len(tensor.shape) == 2
        }
        return sorted(kinds)

    def _names(self) -> dict[str, str]:
        """The names of all tensors the model needs: in the GGUF -> in the Hugging Face layout."""
        family, gguf, wanted = self.family, self._gguf, self.decoder.tensors()
        stems = dict(gguf.tops)
        for layer in range(self.decoder.layers):
            stems |= {
                f"blk.{layer}.{part}": f"{family.layer}{layer}.{name}" for part, name in gguf.parts.items()
            }
        names = {
            f"{part}.{kind}": f"{name}.{kind}" for part, name in stems.items() for kind in ("weight", "bias")
        }
        return {part: name for part, name in names.items() if all(our in wanted for our in family.ours(name))}

    def _tensor(self, name: str) -> gguf.ReaderTensor:
        if name not in self._tensors:
            raise CheckpointError(
                f"{self.path} has no tensor {name}, which a {self.architecture_name} model needs"
            )
        return self._tensors[name]

    def _paired_rows(self, name: str, rows: int) -> npt.NDArray[np.int64] | None:
        """The rows of a tensor in Hugging Face's order, where the GGUF has those of each head in ggml's
        rotary order: pairs side by side."""
        heads = self._gguf.paired.get(name.split(".", 2)[-1].removesuffix(".weight"))
        if heads is None:
            return None
        count = self.setting("attention.head_count")
        if "key_value" in heads:
            count = self.setting("attention.head_count_kv", count)
        pairs = np.arange(rows).reshape(int(count), -1, 2)  # [heads, head_dim / 2, 2]
        return np.asarray(pairs.swapaxes(1, 2).reshape(-1))

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
        if set(LONGROPE_FACTORS.values()) <= set(self._tensors):
            return self._longrope()
        if kind == "none" and factor in (0.0, 1.0):
            return None
        if kind in ("linear", "none"):
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn" and self.setting("rope.scaling.attn_factor", 1.0) == 1.0:
            return {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": self.setting("rope.scaling.original_context_length"),
            }
        raise CheckpointError(
            f"{self.path} uses the rotary scaling {kind!r}; supported are: linear, llama3, longrope, yarn"
        )

    def _longrope(self) -> dict[str, Any]:
        scaling: dict[str, Any] = {"rope_type": "longrope"}
        for key, name in LONGROPE_FACTORS.items():
            stored = np.asarray(self._tensors[name].data, dtype=np.float32).reshape(-1)
            scaling[key] = [_short(float(divisor)) for divisor in stored]
        if attention := self.setting("rope.scaling.attn_factor", 0.0):
            scaling["attention_factor"] = attention
        return scaling


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
