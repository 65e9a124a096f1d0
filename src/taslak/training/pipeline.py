"""From prompts to a head that drafts: the stages, each of which goes on where a kill stopped it.

    answers   the target answers the prompts                      OUT/work/answers.jsonl
    features  its hidden states over the answers                  OUT/work/store/, or --store
    training  the head                                            OUT/work/checkpoint.pt
    saving    the head with provenance.json and curves.png        OUT/
    decoding  the held-out prompts, with the head and without     OUT/evaluation.json

Under `torchrun` all processes train; the first one does the rest while the others wait.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taslak.engine import LanguageModel
from taslak.engine.prompts import Prompt, held_out, read_prompts
from taslak.errors import OptionError
from taslak.loading import load
from taslak.models.config import DecoderConfig
from taslak.models.loading import Progress, resolve, storage
from taslak.models.pretrained import check_dtype
from taslak.models.tokenizer import Tokenizer
from taslak.training.answers import Answers, Shard, answer_prompts, read_texts
from taslak.training.evaluate import Evaluation, evaluate
from taslak.training.options import TrainingOptions
from taslak.training.report import plot, provenance, require_plotting
from taslak.training.store import Store, fill, texts_of
from taslak.training.teacher import Teacher, frequent
from taslak.training.trainer import Point, Trainer
from taslak.training.world import World, world


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run gave. evaluation is None where none was asked for; curves where only answers were."""

    out: Path
    answers: int
    too_long: int
    curves: list[Point]
    evaluation: Evaluation | None


@dataclass(frozen=True, slots=True)
class _Texts:
    """The answers, and the indices of the prompts held out."""

    file: Path
    held_out: frozenset[int]
    too_long: int


def train(
    options: TrainingOptions,
    progress: Progress | None = None,
    fetching: Progress | None = None,
) -> Trained:
    """All stages; or only the answers where `options.shard` says so.

    progress:  told how far a stage is
    fetching:  told how far a download or conversion is

    Raises the UserErrors of `taslak.errors`, among them OptionError for a setting that differs from what an
    interrupted run in the same folder was started with.
    """
    check_dtype(options.dtype, options.device)
    if options.plot and options.shard is None:
        require_plotting()
    with world(options.device) as here:
        return _Run(options, here, progress if here.first else None, fetching if here.first else None).run()


class _Run:
    def __init__(
        self,
        options: TrainingOptions,
        here: World,
        progress: Progress | None,
        fetching: Progress | None,
    ) -> None:
        self._options = options
        self._world = here
        self._progress = progress
        self._fetching = fetching
        self._work = options.out / "work"
        self._store = (options.store or self._work / "store").absolute()

    def run(self) -> Trained:
        """One run at a time in a folder: a second one waits for its turn, and goes on from there."""
        if not self._world.first:
            return self._stages()
        storage.make_folder(self._work)
        with storage.locked(self._work / "run", self._fetching):
            return self._stages()

    def _stages(self) -> Trained:
        o = self._options
        texts = _Texts(self._work / "answers.jsonl", frozenset(), 0)
        if self._world.first:
            texts = self._prepare()
        self._world.wait()
        if o.shard is not None:
            return Trained(o.out, len(Answers(texts.file).read()), texts.too_long, [], None)
        trainer = self._trainer()
        store = trainer.store
        trainer.run(self._progress)
        evaluation = None
        if self._world.first:
            settings = {"model": o.model, "dtype": o.dtype, **trainer.identity}
            made_by = provenance(settings, texts.file, trainer.curves)
            trainer.kind.save(o.out, made_by)
            if o.plot:
                plot(trainer.curves, o.out / "curves.png", f"{o.kind} for {o.model}")
            if o.evaluate:
                evaluation = self._evaluate(trainer)
        texts_used = len(store.trained) + len(store.held_out)
        return Trained(o.out, texts_used, texts.too_long, trainer.curves, evaluation)

    def _prepare(self) -> _Texts:
        """Answers and hidden states."""
        o = self._options
        prompts = read_prompts(o.prompts) if o.prompts is not None else []
        model = load(o.model, control=False, dtype=o.dtype, device=o.device, progress=self._fetching)
        size = o.draft_vocab_size(model.target.vocab_size)
        # settings that this target can't have are told now, not after hours of answering
        kind = o.build(self._teacher(torch.arange(min(size or 1, 16))))
        made_with = {"model": o.model, "dtype": model.dtype}
        texts = self._answers(model, prompts, made_with)
        if o.shard is None:
            taken = texts_of(Answers(texts.file).read(), texts.held_out, o.max_length)
            with storage.locked(self._store, self._fetching):
                fill(self._store, model.target, taken, kind.features, made_with, self._progress)
        return texts

    def _answers(self, model: LanguageModel, prompts: list[Prompt], made_with: dict[str, Any]) -> _Texts:
        """The target's own, or the given ones in the same form."""
        o, seed = self._options, self._options.schedule.seed
        name = "answers.jsonl"
        if o.shard is not None:
            name = f"answers-{o.shard.number}-of-{o.shard.count}.jsonl"
        file = Answers(self._work / name)
        if o.texts:
            given = read_texts(o.texts, model)
            content = hashlib.sha256(b"".join(path.read_bytes() for path in o.texts)).hexdigest()
            self._settle("texts", {**made_with, "texts": [str(p) for p in o.texts], "content": content[:16]})
            if [answer.index for answer in file.read()] != [answer.index for answer in given]:
                file.path.unlink(missing_ok=True)
                for answer in given:
                    file.append(answer)
            order = held_out(len(given), o.held_out)
            return _Texts(file.path, frozenset(a.index for i, a in enumerate(given) if i in order), 0)
        held = held_out(len(prompts), o.held_out)
        self._settle("answers", {**made_with, "max_tokens": o.max_tokens, "prompts": len(prompts)})
        too_long = answer_prompts(
            model,
            prompts,
            file,
            temperatures=o.temperatures,
            greedy=held,
            seed=seed,
            max_tokens=o.max_tokens,
            max_length=o.max_length,
            batch=o.batch,
            shard=o.shard or Shard(),
            progress=self._progress,
        )
        return _Texts(file.path, held, too_long)

    def _settle(self, stage: str, settings: dict[str, Any]) -> None:
        """Note what a stage is made with, where that is not noted yet. Raises OptionError where it was made
        with something else."""
        note = self._work / "settings.json"
        settled: dict[str, Any] = storage.read_json(note) or {}
        before = settled.setdefault(stage, settings)
        if different := [key for key in settings if before.get(key) != settings[key]]:
            key = different[0]
            raise OptionError(
                f"{self._work} holds {stage} made with {key} {before.get(key)!r}, not {settings[key]!r}; "
                "give the same to go on with it, or another --out"
            )
        storage.write_json(note, settled)

    def _teacher(self, draft_ids: Tensor | None) -> Teacher:
        o = self._options
        # narrow weights are multiplied as bfloat16 or narrower in decoding; nothing finer is needed to learn
        dtype = torch.float32 if o.dtype == "float32" else torch.bfloat16
        folder = resolve(o.model, dtype=dtype, progress=self._fetching)
        vocab_size = min(DecoderConfig.from_folder(folder).vocab_size, Tokenizer(folder).vocab_size)
        return Teacher(o.model, folder, vocab_size, draft_ids, self._world.device)

    def _trainer(self) -> Trainer:
        o = self._options
        teacher = self._teacher(None)
        store = Store(self._store)
        size = o.draft_vocab_size(teacher.vocab_size)
        if size is not None and o.init is None:  # else what the head can say is settled
            teacher.draft_ids = frequent(store.token_counts(teacher.vocab_size), size)
        torch.manual_seed(o.schedule.seed)
        kind = o.build(teacher).to(self._world.device)
        store = Store(self._store, kind.features)
        identity = {
            "kind": o.kind,
            "init": o.init,
            **{name: _plain(value) for name, value in o.settings.items()},
            "draft_vocab": None if teacher.draft_ids is None else teacher.draft_vocab_size,
            **asdict(o.schedule),
            "processes": self._world.size,
            "hidden states": store.digest,
        }
        return Trainer(kind, store, o.schedule, self._world, self._work / "checkpoint.pt", identity)

    def _evaluate(self, trainer: Trainer) -> Evaluation:
        """Of held-out prompts, decoded in this process; kept in evaluation.json."""
        o, store = self._options, trainer.store
        trainer.kind.round_as_saved()
        narrow = "float32" if o.dtype == "float32" else "auto"
        model = load(
            o.model,
            draft=str(o.out),
            method=o.kind,
            control=False,
            dtype=o.dtype,
            draft_dtype=narrow if o.kind == "draft-model" else None,  # a head computes as the target does
            gamma=o.gamma,
            device=o.device,
        )
        chosen = store.held_out[: o.evaluate]
        evaluation = evaluate(
            model,
            [store.tokens[store.rows(i)][: store.prompt_lengths[i]].tolist() for i in chosen],
            max_tokens=o.max_tokens,
            training=None if o.texts else trainer.held_out(trainer.steps, chosen).accuracy[0],
            progress=self._progress,
        )
        storage.write_json(o.out / "evaluation.json", evaluation.as_json())
        return evaluation


def _plain(value: object) -> object:
    """As a checkpoint keeps it."""
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
