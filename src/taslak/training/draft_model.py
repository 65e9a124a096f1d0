"""A draft model: a shallow copy of the target, distilled on the target's distribution.

Leviathan et al. 2023 (draft models), Zhou et al. 2024, "DistillSpec". Saved as an ordinary checkpoint in
Hugging Face layout.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from taslak.errors import CheckpointError, OptionError
from taslak.models.decoder import FINAL_NORM
from taslak.models.families import FAMILIES
from taslak.models.layers import HEAD, NORMS, PRODUCTS, norm_name, weight_name
from taslak.models.loading.storage import make_folder, write_json
from taslak.models.rope import Rope
from taslak.training.batch import Batch
from taslak.training.kind import SAVED, Kind
from taslak.training.layers import Layer, Norm
from taslak.training.teacher import Teacher

SMALLER = 8
"""Of how many layers one is kept where none are chosen."""

TOKENIZER_SUFFIXES = (".json", ".model", ".txt", ".jinja")
NOT_THE_TOKENIZER = ("config.json", "provenance.json", "model.safetensors.index.json")


class DraftModel(Kind):
    """start:   the checkpoint it starts from: the target's own folder, or another of the same vocabulary
    layers:  of it, numbered from 0; None = one of eight, evenly spread, of the target; all of another
    """

    features = (FINAL_NORM,)

    def __init__(
        self, teacher: Teacher, layers: Sequence[int] | None = None, init: Path | None = None
    ) -> None:
        super().__init__(teacher)
        source = (
            teacher if init is None else Teacher(str(init), init, teacher.vocab_size, device=teacher.device)
        )
        self.source = source
        c = source.config
        if not c.plain or FAMILIES[c.family].parts:
            raise OptionError(
                f"a draft model is trained with the layers of a Llama or Qwen2, and {source.name} is of the "
                f"family {c.family}, whose layers are built differently; train a head (eagle, medusa) for it"
            )
        if init is not None and c.vocab_size < teacher.vocab_size:
            raise OptionError(
                f"{init} has {c.vocab_size} tokens and the target {teacher.vocab_size}; "
                "a draft model needs the target's tokenizer"
            )
        if layers is None:
            count = c.layers if init is not None else max(c.layers // SMALLER, 1)
            layers = [round(i * (c.layers - 1) / max(count - 1, 1)) for i in range(count)]
        if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < c.layers:
            raise OptionError(
                f"layers are {', '.join(map(str, layers))}; expected ascending ones of 0 to {c.layers - 1}"
            )
        self.chosen = list(layers)
        # the model's own, which a head's layer may not be able to say
        self.rope = Rope(c.rope, c.head_size, torch.float32, teacher.device)
        self.embedding = nn.Parameter(source.weight("model.embed_tokens.weight"))
        self.layers = nn.ModuleList(
            Layer(source.layer, c.hidden_size, input_norm=True, out_bias=c.out_bias, mlp_bias=c.mlp_bias)
            for _ in layers
        )
        self.norm = Norm(c.hidden_size, c.norm_eps)
        self.lm_head = None if c.tied else nn.Parameter(source.weight(HEAD))
        with torch.no_grad():
            for name, parameter in self.tensors(self.chosen).items():
                parameter.copy_(source.weight(name))

    def tensors(self, numbers: Sequence[int]) -> Mapping[str, Tensor]:
        """The parameters by their Hugging Face names, the layers numbered so."""
        named: dict[str, Tensor] = {
            "model.embed_tokens.weight": self.embedding,
            "model.norm.weight": self.norm.weight,
        }
        if self.lm_head is not None:
            named[HEAD] = self.lm_head
        for number, layer in zip(numbers, self.layers, strict=True):
            for norm in NORMS:
                named[norm_name(number, norm)] = getattr(layer, norm).weight
            for product in PRODUCTS:
                linear = getattr(layer, product)
                named[weight_name(number, product)] = linear.weight
                if linear.bias is not None:
                    named[weight_name(number, product, "bias")] = linear.bias
        return named

    def hidden(self, batch: Batch) -> Tensor:
        """After the last norm. -> [T, H]."""
        x = F.embedding(batch.tokens, self.embedding)
        turn = self.rope.at(batch.positions)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            assert layer.input_norm is not None
            h = layer.input_norm(x)
            x = layer(h, x, turn, [(span, span) for span in batch.spans], [layer.key_value(h, turn)])
        normed: Tensor = self.norm(x)
        return normed

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        p = self.teacher.distributions(batch)
        rows = batch.ahead(1)
        unembedding = self.embedding if self.lm_head is None else self.lm_head
        judged = (rows, self.hidden(batch)[rows], unembedding[: self.teacher.vocab_size])
        return self.judged([judged], [1], batch, p)

    def save(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        make_folder(folder)
        source = self.source.folder
        values = json.loads((source / "config.json").read_text(encoding="utf-8"))
        values["num_hidden_layers"] = len(self.layers)
        values["torch_dtype"] = values["dtype"] = "bfloat16"
        for per_layer in ("layer_types", "max_window_layers"):  # said of the target's layers
            values.pop(per_layer, None)
        tensors = {
            name: tensor.detach().to("cpu", SAVED).contiguous()
            for name, tensor in self.tensors(range(len(self.layers))).items()
        }
        # `save_file` would let nobody but this user read it
        (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        write_json(folder / "provenance.json", dict(provenance))
        copied = 0
        for file in self.teacher.folder.iterdir():  # the tokenizer is the target's in any case
            if file.suffix in TOKENIZER_SUFFIXES and file.name not in NOT_THE_TOKENIZER:
                shutil.copyfile(file, folder / file.name)
                copied += 1
        if not copied:
            raise CheckpointError(f"{self.teacher.folder} has no tokenizer to go with the draft model")
        write_json(folder / "config.json", values)  # last: with it the folder is a model
