"""What the speculators package computes for a head. Runs in an environment that has it, and without taslak:

python speculators_reference.py FOLDER IN.safetensors OUT.safetensors SAVED

FOLDER:  a head in the layout of speculators, which its own loader loads
SAVED:   the folder that it saves the head to
IN:      tokens Int64[n], features Float[n, 3 H]
OUT:     hidden Float[rounds, n, H], logits Float[rounds, n, Vd]; in round k row t reads token t + k, and from
         round 1 on what it gave in the round before
"""

from __future__ import annotations

import sys

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig

ROUNDS = 3


@torch.no_grad()
def main(folder: str, given: str, out: str, saved: str) -> None:
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"  # the others are made for GPUs
    model = SpeculatorModel.from_pretrained(folder, config=config).eval()
    hidden, logits = [], []
    model.layers[0].register_forward_hook(lambda _module, _given, result: hidden.append(result[0]))
    model.lm_head.register_forward_hook(lambda _module, _given, result: logits.append(result[0]))
    inputs = load_file(given)
    model(
        hidden_states=inputs["features"][None],
        input_ids=inputs["tokens"][None],
        document_ids=torch.zeros_like(inputs["tokens"])[None],
        ttt_steps=ROUNDS,
    )
    save_file({"hidden": torch.stack(hidden).contiguous(), "logits": torch.stack(logits).contiguous()}, out)
    model.save_pretrained(saved)


if __name__ == "__main__":
    main(*sys.argv[1:])
