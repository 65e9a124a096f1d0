"""Other projects' heads computed from their definitions: plain PyTorch over the tensors of a file, under the
file's own names. A whole text at once, a causal mask, nothing cached.

Imports nothing of taslak: what is said here and there can only agree by being right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = Mapping[str, Tensor]
Settings = Mapping[str, Any]


def medusa(tensors: Tensors, settings: Settings, hidden: Tensor) -> Tensor:
    """Logits of every head. hidden: [n, H], after the target's last norm -> [heads, n, V]."""
    said = []
    for i in range(settings["medusa_num_heads"]):
        x = hidden
        for j in range(settings["medusa_num_layers"]):
            x = x + F.silu(F.linear(x, tensors[f"{i}.{j}.linear.weight"], tensors[f"{i}.{j}.linear.bias"]))
        said.append(x @ tensors[f"{i}.{settings['medusa_num_layers']}.weight"].T)
    return torch.stack(said)


def eagle(
    tensors: Tensors, settings: Settings, target: Tensors, tokens: Sequence[int], hidden: Tensor
) -> Tensor:
    """The next features of EAGLE-1, [n, H].

    target:  embed_tokens.weight, where the head has none
    tokens:  [n] row t reads the token at t + 1
    hidden:  [n, H] the features at t
    """
    embedded = tensors.get("embed_tokens.weight", target["embed_tokens.weight"])[list(tokens)]
    x = F.linear(torch.cat((embedded, hidden), -1), tensors["fc.weight"], tensors.get("fc.bias"))
    return _behind_attention(tensors, settings, "layers.0", x, x)


def eagle3(
    tensors: Tensors,
    settings: Settings,
    target: Tensors,
    tokens: Sequence[int],
    hidden: Tensor,
    *,
    at: str = "midlayer",
    norm_before_residual: bool = False,
) -> Tensor:
    """The next features of EAGLE-3, [n, H]; hidden: three layers' outputs through fc, or what was given for
    the row before."""
    eps = settings["rms_norm_eps"]
    embedded = tensors.get("embed_tokens.weight", target["embed_tokens.weight"])[list(tokens)]
    normed = rms(hidden, tensors[f"{at}.hidden_norm.weight"], eps)
    x = torch.cat((rms(embedded, tensors[f"{at}.input_layernorm.weight"], eps), normed), -1)
    return _behind_attention(tensors, settings, at, x, normed if norm_before_residual else hidden)


def eagle3_logits(tensors: Tensors, settings: Settings, out: Tensor, vocab: int) -> Tensor:
    """Over the target's tokens, −∞ where the head knows none. out: [n, H] -> [n, V]."""
    logits = rms(out, tensors["norm.weight"], settings["rms_norm_eps"]) @ tensors["lm_head.weight"].T
    ids = torch.arange(logits.shape[-1]) + tensors.get("d2t", torch.tensor(0))
    wide = torch.full((out.shape[0], vocab), -torch.inf)
    wide[:, ids] = logits
    return wide


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def _behind_attention(tensors: Tensors, settings: Settings, at: str, x: Tensor, residual: Tensor) -> Tensor:
    """The layer of a Llama from its attention's input x on."""
    heads, kv_heads, size = (
        settings[f"{n}"] for n in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    rows = x.shape[0]

    def product(name: str, count: int) -> Tensor:
        where = f"{at}.self_attn.{name}_proj"
        return F.linear(x, tensors[f"{where}.weight"], tensors.get(f"{where}.bias")).view(rows, count, size)

    q = _rotated(product("q", heads), settings["rope_theta"])
    k = _rotated(product("k", kv_heads), settings["rope_theta"])
    v = product("v", kv_heads)
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / size**0.5
    scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(rows, -1)
    x = residual + mixed @ tensors[f"{at}.self_attn.o_proj.weight"].T
    h = rms(x, tensors[f"{at}.post_attention_layernorm.weight"], settings["rms_norm_eps"])
    gate, up, down = (tensors[f"{at}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + (F.silu(h @ gate.T) * (h @ up.T)) @ down.T


def _rotated(x: Tensor, theta: float) -> Tensor:
    """x: [n, heads, d], row t at position t."""
    n, _, d = x.shape
    angles = torch.arange(n)[:, None] / theta ** (torch.arange(0, d, 2) / d)  # [n, d/2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
