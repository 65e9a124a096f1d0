"""transformers' `from_pretrained` and `generate`, answered by taslak. One import changes, the calls stay:

    from taslak.interop import AutoModelForCausalLM

Tensors in, tensors out. The names of arguments and settings are `taslak.interop.aliases`'s business.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taslak.engine.language_model import LanguageModel
from taslak.engine.scheduler import Scheduler
from taslak.errors import CheckpointError, OptionError, SamplingError
from taslak.interop.aliases import Assistance, assistance, options, resolved, seeds
from taslak.interop.transformers_target import TransformersTarget
from taslak.interop.wrap import DRAFTING, drafting, from_transformers, speculating
from taslak.loading import load
from taslak.models.config import DecoderConfig
from taslak.models.loading import find_pack
from taslak.models.loading.huggingface import TOKENIZER_FILES, check_folder
from taslak.models.pretrained import DTYPES, Pretrained


class AutoModelForCausalLM:
    """In the place of transformers' class of this name."""

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        dtype: Any = None,
        torch_dtype: Any = None,
        device_map: Any = None,
        **given: Any,
    ) -> CausalLM:
        """Load a model by its folder, its Hub id, or any other name that `taslak.load` knows.

        dtype, torch_dtype, device_map: as in transformers, or a dtype of `taslak.load`
        given:  options of `taslak.load` that say how to draft (draft, method, control, …), for calls that
                name no assistant; all others are transformers'

        taslak runs the families it has itself. Where transformers has to (another family or dtype, an option
        of its own) it loads the model, which is then wrapped. Raises what both do.
        """
        ours = {key: given.pop(key) for key in [*given] if key in (*DRAFTING, "draft")}
        dtype = torch_dtype if dtype is None else dtype
        simple = not given and (device_map is None or str(device_map).partition(":")[0] in ("cpu", "cuda"))
        width = _own_width(str(name), dtype) if simple else None
        if width is not None:
            return CausalLM(load(str(name), dtype=width, device=device_map or "cpu", **ours))
        from transformers import AutoModelForCausalLM as Theirs

        given |= {k: v for k, v in (("dtype", dtype), ("device_map", device_map)) if v is not None}
        same = {key: given[key] for key in WHERE if key in given}
        model = Theirs.from_pretrained(name, **given)
        tokenizer = None
        if "subfolder" in given:
            tokenizer = _tokenizer(Path(name), subfolder=given["subfolder"], **same)
        if tokenizer is None:  # it may lie above the weights
            tokenizer = _tokenizer(Path(name), **same)
        return CausalLM(from_transformers(model, tokenizer, **ours))


WHERE = ("cache_dir", "local_files_only", "revision", "token", "trust_remote_code")
"""Of transformers' arguments those that say where a model is: its tokenizer is there, too."""


class CausalLM:
    """A LanguageModel with transformers' `generate`.

    language_model:     taslak's own front door: texts, streams, grammars, what was accepted
    generation_config:  what calls don't say, as in transformers
    """

    def __init__(self, language_model: LanguageModel) -> None:
        self.language_model = language_model
        self.generation_config = _generation_config(language_model)
        self._assisted: dict[tuple[Any, ...], tuple[Assistance, LanguageModel]] = {}

    @property
    def device(self) -> torch.device:
        return self.language_model.target.device

    @property
    def dtype(self) -> torch.dtype:
        return self.language_model.target.dtype

    def eval(self) -> CausalLM:
        """It always is ready to generate."""
        return self

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a model of taslak.interop has no attribute {name!r}: it generates, no more. For anything else "
            "load the model with transformers"
        )

    def generate(self, inputs: Tensor | None = None, generation_config: Any = None, **given: Any) -> Any:
        """As transformers' generate, of one prompt or a padded batch.

        inputs, input_ids:    Int64[B, L]; attention_mask: [B, L], 0 = padding, on either side
        assistant_model:      a model of this class or of transformers, or a name that `taslak.load` knows
        assistant_tokenizer:  of an assistant of transformers; without it the two have one tokenizer
        tokenizer:            accepted; the model has its own
        streamer:             as in transformers, for one answer
        seed:                 taslak's: of the samples. Without it they repeat where PyTorch's generator does
        the others:           settings of GenerationConfig, and the names that are refused (docs/migration.md)

        Without an assistant the model's own method drafts. -> Int64[B · answers, L + longest answer], shorter
        ones padded; a GenerateDecoderOnlyOutput with `return_dict_in_generate`.

        Raises OptionError for what has no counterpart, and what `LanguageModel.generate` raises.
        """
        config, arguments = resolved(given, generation_config, self.generation_config)
        ids = arguments.get("input_ids") if inputs is None else inputs
        if ids is None and config.bos_token_id is not None:
            ids = torch.tensor([[config.bos_token_id]], device=self.device)
        ids = _ids(ids)
        prompts = _prompts(ids, arguments.get("attention_mask"))
        asked = options(config, ids.shape[1])
        model = self._assisted_by(assistance(config, arguments))
        scheduler = Scheduler(model.engine, model.tokenizer, listeners=model.listeners)
        for prompt, seed in zip(prompts, seeds(arguments.get("seed"), len(prompts)), strict=True):
            for request in model.requests(prompt, seed=seed, **asked):
                scheduler.add(request)
        answers = _answers(scheduler, prompts, arguments.get("streamer"))
        sequences = _sequences(ids, answers, config)
        if not config.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)

    def _assisted_by(self, by: Assistance) -> LanguageModel:
        """The model with what drafts for a call; calls alike share one."""
        if by == Assistance():
            return self.language_model
        same = by.draft if isinstance(by.draft, str) else id(by.draft)
        key = (same, id(by.tokenizer), *by.options.values())
        if key not in self._assisted:
            target, draft, more = self.language_model.pretrained, by.draft, dict[str, Any]()
            if isinstance(draft, CausalLM):
                draft = draft.language_model.pretrained
            elif draft is not None and not isinstance(draft, str):
                draft = drafting(draft, by.tokenizer, target)
            if isinstance(draft, Pretrained) and by.tokenizer is not None:
                more["cross_vocab"] = target.tokenizer.first_difference(draft.tokenizer) is not None
            verify = self.language_model.verify
            made = speculating(target, draft, verify=verify, **by.options, **more)
            self._assisted[key] = by, made  # an id is that of nothing else while `by` holds on to it
        return self._assisted[key][1]


def _answers(scheduler: Scheduler, prompts: list[list[int]], streamer: Any) -> list[tuple[int, ...]]:
    """Token ids, in the order of the requests. A streamer hears of them as they come."""
    if streamer is not None:
        if scheduler.waiting > 1:
            raise OptionError("a streamer takes one answer; give one prompt, and no num_return_sequences")
        streamer.put(torch.tensor(prompts))
    answers: dict[int, tuple[int, ...]] = {}
    with closing(scheduler.run()) as steps:
        for number, event in steps:
            if streamer is not None and event.tokens:
                streamer.put(torch.tensor(event.tokens))
            if event.answer is not None:
                if event.answer.error is not None:
                    raise SamplingError(event.answer.error)
                answers[number] = event.answer.ids
    if streamer is not None:
        streamer.end()
    return [answers[number] for number in sorted(answers)]


def _own_width(name: str, dtype: Any) -> str | None:
    """The dtype by which `taslak.load` loads a model; None where transformers has to."""
    width = "auto" if dtype is None else str(dtype).removeprefix("torch.")
    if width not in DTYPES:
        return None
    if find_pack(name) or name.lower().endswith(".gguf"):
        return width
    from transformers import AutoConfig

    try:
        values = AutoConfig.from_pretrained(name).to_dict()
        DecoderConfig.from_hf(values)
        if Path(name).is_dir():
            check_folder(Path(name))
    except (CheckpointError, OSError, ValueError, KeyError):
        return None
    if width == "auto" and str(values.get("dtype")).endswith("float32"):
        return "float32"
    return width


def _tokenizer(name: Path, *, subfolder: str = "", **where: Any) -> Any | None:
    """Of transformers; None where there is none: prompts are token ids anyway."""
    from transformers import AutoTokenizer

    # without files some classes make an empty one
    if name.is_dir() and not any((name / subfolder / file).is_file() for file in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(name), subfolder=subfolder, **where)
    except (OSError, ValueError, KeyError):
        return None


def _generation_config(model: LanguageModel) -> Any:
    """Of the wrapped model, else as transformers makes one from what lies beside the weights; of a pack or a
    GGUF nothing but the ids of the end."""
    from transformers import GenerationConfig

    if isinstance(model.target, TransformersTarget):
        return copy.deepcopy(model.target.model.generation_config)
    name = model.name
    if Path(name).is_dir() or ("/" in name and not Path(name).is_file()):
        for file in ("generation_config.json", "config.json"):
            with suppress(OSError):
                return GenerationConfig.from_pretrained(name, config_file_name=file)
    return GenerationConfig(eos_token_id=list(model.tokenizer.eos_ids) or None)


def _ids(ids: Any) -> Tensor:
    """Raises OptionError for anything else than Int64[B, L]."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        got = tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
        raise OptionError(f"input_ids is {got}; expected a tensor of token ids, [prompts, tokens]")
    return ids


def _prompts(ids: Tensor, mask: Any) -> list[list[int]]:
    """Token ids of each row, without what the mask hides."""
    if mask is None:
        return [row.tolist() for row in ids]
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        raise OptionError(f"attention_mask is no tensor of the shape of input_ids, {tuple(ids.shape)}")
    return [row[shown.bool()].tolist() for row, shown in zip(ids, mask, strict=True)]


def _sequences(ids: Tensor, answers: Sequence[Sequence[int]], config: Any) -> Tensor:
    """Prompts with their answers behind them. -> Int64[answers, L + longest]."""
    longest = max(map(len, answers))
    ends = config.eos_token_id
    padding = config.pad_token_id
    if padding is None:
        padding = ends[0] if isinstance(ends, list) else 0 if ends is None else ends
    rows = [[*answer, *[padding] * (longest - len(answer))] for answer in answers]
    prompts = ids.repeat_interleave(len(answers) // len(ids), dim=0)
    return torch.cat((prompts, torch.tensor(rows, dtype=ids.dtype, device=ids.device)), dim=1)
