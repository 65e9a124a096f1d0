"""transformers' keyword names, and what they are called here. All of them stand in this file.

Each argument and setting of its `generate` is either translated, or makes no difference to the tokens, or is
an error that says what to do instead. Nothing is swallowed. The settings' defaults are transformers' too.
"""

from __future__ import annotations

import copy
import difflib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from taslak.engine.sequence import DEEPEST
from taslak.errors import OptionError

log = logging.getLogger(__name__)

NEW_TOKENS = 20
TOP_K = 50
"""What transformers takes where nothing says how many tokens to generate, and how many to sample from."""

ASSISTED = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")
"""What drafts; at most one of them is given."""
OF_ASSISTANTS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")

# fmt: off
TRANSLATED = frozenset((
    "bad_words_ids", "bos_token_id", "do_sample", "eos_token_id", "max_length", "max_matching_ngram_size",
    "max_new_tokens", "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size",
    "num_return_sequences", "pad_token_id", "repetition_penalty", "return_dict_in_generate",
    "sequence_bias", "stop_strings", "suppress_tokens", "temperature", "top_k", "top_p",
    *ASSISTED[1:], *OF_ASSISTANTS,
))
"""Settings that have a meaning here."""

WITHOUT_EFFECT = frozenset((
    "assistant_lookbehind", "cache_config", "compile_config", "continuous_batching_config",
    "decoder_start_token_id", "disable_compile", "early_stopping", "is_assistant", "length_penalty",
    "low_memory", "max_cache_len", "prefill_chunk_size", "renormalize_logits", "target_lookbehind",
    "transformers_version", "use_cache",
))
# fmt: on
"""Settings that make no difference to the tokens: how transformers computes, and what only beams have."""

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "assistant_ensemble_weight": ((), "it changes what is generated, and taslak's drafts never do"),
    "begin_suppress_tokens": ((), "suppress_tokens holds for the whole answer"),
    "cache_implementation": (
        ("dynamic", "static", "hybrid"),
        "keys and values lie in a cache of taslak's own",
    ),
    "constraints": ((), "give a grammar to language_model.generate"),
    "diversity_penalty": ((0.0,), "there are no beams"),
    "dola_layers": ((), "it changes what is generated"),
    "encoder_no_repeat_ngram_size": ((0,), "there is no encoder"),
    "encoder_repetition_penalty": ((1.0,), "there is no encoder"),
    "epsilon_cutoff": ((0.0,), "cut with min_p"),
    "eta_cutoff": ((0.0,), "cut with min_p"),
    "exponential_decay_length_penalty": ((), "use max_new_tokens"),
    "force_words_ids": ((), "give a grammar to language_model.generate"),
    "forced_bos_token_id": ((), "let the prompt end with it"),
    "forced_eos_token_id": ((), "an answer that is cut has no end token"),
    "guidance_scale": ((1.0,), "there is no guidance"),
    "max_time": ((), "close language_model.stream when it is time"),
    "num_beam_groups": ((1,), "there are no beams"),
    "num_beams": ((1,), "there are no beams; num_return_sequences samples several answers"),
    "output_attentions": ((False,), "call the model itself"),
    "output_hidden_states": ((False,), "call the model itself"),
    "output_logits": ((False,), "language_model.generate gives logprobs"),
    "output_scores": ((False,), "language_model.generate gives logprobs"),
    "penalty_alpha": ((0.0,), "it changes what is generated"),
    "remove_invalid_values": ((False,), "a NaN is an error"),
    "speculation_type": ((), "name a trained head when loading (draft=)"),
    "token_healing": ((False,), "let the prompt end on a whole token"),
    "top_h": ((), "cut with top_p or min_p"),
    "typical_p": ((1.0,), "cut with top_p or min_p"),
    "use_mtp": ((False,), "name a trained head when loading (draft=)"),
    "watermarking_config": ((), "it changes what is generated"),
}
"""Settings there is nothing for: the values beside None that ask for nothing, and what to do instead."""

ARGUMENTS = frozenset(
    ("assistant_model", "assistant_tokenizer", "attention_mask", "input_ids", "seed", "streamer", "tokenizer")
)
"""Arguments of `generate` that are no settings; `seed` is taslak's own."""

REFUSED_ARGUMENTS: Mapping[str, str] = {
    "cache": "each call has a cache of its own",
    "custom_generate": "call transformers' own generate",
    "inputs_embeds": "give token ids",
    "logits_processor": "many are settings: repetition_penalty, suppress_tokens, sequence_bias",
    "negative_prompt_attention_mask": "there is no guidance",
    "negative_prompt_ids": "there is no guidance",
    "past_key_values": "each call has a cache of its own",
    "position_ids": "positions count from the first token that attention_mask shows",
    "prefix_allowed_tokens_fn": "give a grammar to language_model.generate",
    "stopping_criteria": "use stop_strings or eos_token_id, or close language_model.stream",
    "synced_gpus": "one process generates",
    "token_type_ids": "leave them out",
    "trust_remote_code": "it belongs to from_pretrained",
}
"""Arguments there is nothing for, unless None or False, and what to do instead."""

OURS = {
    "max_tokens": "max_new_tokens",
    "stop": "stop_strings",
    "n": "num_return_sequences",
    "draft": "assistant_model",
}
OURS |= {"gamma": "num_assistant_tokens", "exit_layer": "assistant_early_exit", "eos": "eos_token_id"}
"""taslak's names, for whoever mixes them up."""


@dataclass(frozen=True)
class Assistance:
    """What drafts for a call, in taslak's words (`taslak.load`); the default: the model's own method.

    draft:  as it was given; tokenizer: its own, of transformers
    """

    method: str | None = None
    draft: Any = None
    tokenizer: Any = None
    gamma: int | None = None
    stop_below: float | None = None
    ngram: tuple[int, int] | None = None
    exit_layer: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Of `load`, without the draft. Hashable, so that calls alike share a model."""
        names = ("method", "gamma", "stop_below", "ngram", "exit_layer")
        return {name: getattr(self, name) for name in names}


def resolved(given: Mapping[str, Any], config: Any, own: Any) -> tuple[Any, dict[str, Any]]:
    """The settings of a call, a GenerationConfig, and its arguments that are none.

    Whatever the call says goes before `config`, the generation_config it names, and that before `own`, the
    model's. Raises OptionError for names that mean nothing and for what has no counterpart.
    """
    from transformers import GenerationConfig

    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    arguments = {name: value for name, value in given.items() if name not in known}
    for name, value in arguments.items():
        if name not in ARGUMENTS and name not in REFUSED_ARGUMENTS:
            raise OptionError(f"generate has no argument {name!r}{_meant(name, known)}")
        if name in REFUSED_ARGUMENTS and value is not None and value is not False:
            raise OptionError(f"{name} has no counterpart in taslak: {REFUSED_ARGUMENTS[name]}")
    made = copy.deepcopy(GenerationConfig() if config is None else config)
    made.update(**{name: value for name, value in own.to_dict().items() if name in known}, defaults_only=True)
    try:
        made.update(**{name: value for name, value in given.items() if name in known})
    except ValueError as error:  # what transformers itself checks
        raise OptionError(str(error)) from error
    for name in sorted(known - TRANSLATED - WITHOUT_EFFECT):
        value = getattr(made, name)
        nothing, instead = REFUSED.get(name, ((), "this release doesn't know it"))
        if value is not None and value not in nothing:
            raise OptionError(f"{name}={value!r} has no counterpart in taslak: {instead}")
    _settle_assistants(given, made)
    return made, arguments


def _meant(name: str, settings: Collection[str]) -> str:
    if name in OURS:
        return f"; what taslak calls so is {OURS[name]} in transformers"
    close = difflib.get_close_matches(name, [*settings, *ARGUMENTS], n=1)
    return f"; did you mean {close[0]}?" if close else "; expected those of transformers' generate"


def _settle_assistants(given: Mapping[str, Any], made: Any) -> None:
    """Leave one that drafts: what the call names, else what `made`, its GenerationConfig, holds. Raises
    OptionError for more than one, and for settings of one that isn't there."""
    named = [name for name in ASSISTED if given.get(name) is not None]
    if not named:
        named = [name for name in ASSISTED if getattr(made, name, None) is not None]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} exclude each other; give one of them")
    for name in ASSISTED:
        if name not in named and hasattr(made, name):
            setattr(made, name, None)
    for name in (*OF_ASSISTANTS, "assistant_tokenizer"):
        if given.get(name) is not None and named not in (["assistant_model"], ["assistant_early_exit"]):
            raise OptionError(f"{name} belongs to assistant_model, which isn't given")
    if given.get("max_matching_ngram_size") is not None and named != ["prompt_lookup_num_tokens"]:
        raise OptionError("max_matching_ngram_size belongs to prompt_lookup_num_tokens, which isn't given")


def assistance(config: Any, arguments: Mapping[str, Any]) -> Assistance:
    """What drafts. The settings of an assistant are the call's, else those of its own generation_config."""
    assistant = arguments.get("assistant_model")
    theirs = getattr(assistant, "generation_config", None)

    def setting(name: str) -> Any:
        value = getattr(config, name)
        return getattr(theirs, name, None) if value is None else value

    if (depth := config.prompt_lookup_num_tokens) is not None:
        longest = config.max_matching_ngram_size
        return Assistance("ngram", gamma=_depth(depth), ngram=None if longest is None else (1, longest))
    if assistant is None and config.assistant_early_exit is None:
        return Assistance()
    schedule = setting("num_assistant_tokens_schedule")
    constant = schedule in (None, "constant")
    if not constant and schedule not in ("heuristic", "heuristic_transient"):
        raise OptionError(
            f"num_assistant_tokens_schedule is {schedule!r}; expected constant, heuristic or "
            "heuristic_transient"
        )
    depth = setting("num_assistant_tokens")
    common = {
        "gamma": _depth(depth) if constant and depth is not None else None,
        "stop_below": setting("assistant_confidence_threshold"),
    }
    if assistant is None:
        return Assistance("early-exit", exit_layer=config.assistant_early_exit, **common)
    return Assistance("draft-model", assistant, arguments.get("assistant_tokenizer"), **common)


def _depth(tokens: int) -> int:
    if tokens > DEEPEST:
        log.warning("taslak drafts at most %d tokens deep; %d were asked for", DEEPEST, tokens)
    return min(int(tokens), DEEPEST)


def options(config: Any, prompt_tokens: int) -> dict[str, Any]:
    """Of `LanguageModel.generate`, but for the seed. prompt_tokens: of a row, which lengths include."""
    longest = config.max_length
    most = config.max_new_tokens
    if most is None:
        most = NEW_TOKENS if longest is None else longest - prompt_tokens
    if most < 1:
        raise OptionError(
            f"max_length is {longest} and the prompt has {prompt_tokens} tokens; use max_new_tokens"
        )
    least = config.min_new_tokens
    if least is None:
        least = max((config.min_length or 0) - prompt_tokens, 0)
    ends = config.eos_token_id
    made: dict[str, Any] = {
        "max_tokens": most,
        "min_tokens": least,
        "eos": () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends),
        "stop": config.stop_strings,
        "n": config.num_return_sequences or 1,
        "repetition_penalty": config.repetition_penalty or 1.0,
        "no_repeat_ngram": config.no_repeat_ngram_size or 0,
        "banned": (*(config.suppress_tokens or ()), *_single("bad_words_ids", config.bad_words_ids or ())),
        "logit_bias": _biases(config.sequence_bias),
    }
    if config.do_sample:
        made |= {
            "temperature": 1.0 if config.temperature is None else config.temperature,
            "top_k": TOP_K if config.top_k is None else config.top_k,
            "top_p": 1.0 if config.top_p is None else config.top_p,
            "min_p": config.min_p or 0.0,
        }
    return made


def seeds(given: int | None, rows: int) -> list[int]:
    """One a prompt, each drawn for itself. None given: from PyTorch's generator, so that whoever seeds that
    gets the same samples."""
    if given is not None:
        return [given + row for row in range(rows)]
    drawn: list[int] = torch.randint(2**31, (rows,)).tolist()
    return drawn


def _biases(given: Any) -> dict[int, float]:
    """Of single tokens. given: {(token,): bias} or [[[token], bias], …]"""
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    sequences, biases = zip(*pairs, strict=True) if pairs else ((), ())
    return dict(zip(_single("sequence_bias", sequences), biases, strict=True))


def _single(name: str, sequences: Collection[Collection[int]]) -> list[int]:
    for sequence in sequences:
        if len(sequence) != 1:
            raise OptionError(
                f"{name} holds the sequence {list(sequence)}; taslak bans and biases single tokens"
            )
    return [next(iter(sequence)) for sequence in sequences]
