"""Position-keyed noise: every random number is a pure function of where it is used.

A draw is addressed by (key, stream, position, token id) and hashed, never taken from a running
generator. So a token's noise is the same whether it is drawn alone, inside a batch, or while verifying
a draft: the property coupled verification rests on.
"""

from __future__ import annotations

import secrets
from enum import IntEnum

import torch
from torch import Tensor

from taslak.errors import OptionError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's increment: odd, its multiples are well spread
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB


class Stream(IntEnum):
    """Disjoint sources of noise; reusing one for another purpose biases the output."""

    TOKEN = 0
    """The target's own draw; drafters share it under coupled verification."""
    DRAFT = 1
    """A drafter's draws under rejection verification."""
    ACCEPT = 2
    """Accept or reject, addressed by (position, sibling)."""
    RESIDUAL = 3
    """The token drawn where no drafted child was accepted."""


def _signed(value: int) -> int:
    """The int64 with the same bits as the unsigned 64-bit `value`."""
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood 2014) on one unsigned 64-bit integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MUL_1) & _MASK
    value = ((value ^ (value >> 27)) * _MUL_2) & _MASK
    return value ^ (value >> 31)


def fresh_seed() -> int:
    """A seed from the operating system, for requests that name none; it is reported with the answer. 53 bits:
    whoever reads it as a double reads the same number."""
    return secrets.randbits(53)


def noise_key(seed: int, choice: int = 0) -> int:
    """The 64-bit key of one answer. `choice` numbers the answers to one prompt (n > 1), never a batch.

    Raises OptionError for a negative seed or one of more than 64 bits.
    """
    if not 0 <= seed <= _MASK:
        raise OptionError(f"seed {seed} is out of range; expected 0 … 2**64 − 1")
    return _mix(_mix(seed + _GOLDEN) + (choice + 1) * _GOLDEN)


def address(key: int, stream: Stream, position: int) -> int:
    """The 64 bits that all noise of one draw is hashed from, together with a token id."""
    return _mix(_mix(key ^ ((stream + 1) * _MUL_1)) + (position + 1) * _GOLDEN)


def uniform(key: int, stream: Stream, position: int, ids: Tensor) -> Tensor:
    """53-bit uniforms in (0, 1) for token ids. ids: Int64[S] -> Float64[S]."""
    h = ids.to(torch.int64) + 1
    # int64 arithmetic wraps like unsigned; only the shifts need the sign bits masked away
    h.mul_(_signed(_GOLDEN)).add_(_signed(address(key, stream, position)))
    h.bitwise_xor_((h >> 30) & ((1 << 34) - 1)).mul_(_signed(_MUL_1))
    h.bitwise_xor_((h >> 27) & ((1 << 37) - 1)).mul_(_signed(_MUL_2))
    h.bitwise_xor_((h >> 31) & ((1 << 33) - 1))
    u = ((h >> 11) & ((1 << 53) - 1)).to(torch.float64)
    return u.mul_(2.0**-53).clamp_(min=2.0**-54)


def uniform_at(key: int, stream: Stream, position: int, index: int) -> float:
    """One uniform in [0, 1); equals `uniform` at id `index` except that an exact zero stays zero."""
    return (_mix(address(key, stream, position) + (index + 1) * _GOLDEN) >> 11) * 2.0**-53


def gumbel(key: int, stream: Stream, position: int, ids: Tensor) -> Tensor:
    """Standard Gumbel noise −log(−log u) for token ids. ids: Int64[S] -> Float64[S], always finite."""
    return uniform(key, stream, position, ids).log_().neg_().log_().neg_()
