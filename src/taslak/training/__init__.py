"""Training drafters: Medusa heads, EAGLE heads, early exits and draft models, from prompts to a folder.

answers.py  store.py                 the target's answers to prompts, its hidden states over those
batch.py    teacher.py  loss.py     what a step sees, what it learns from, and how it is judged
layers.py   kind.py                 what the kinds have in common; then one file a kind
trainer.py  world.py                the loop, alone or under torchrun
evaluate.py report.py               what the result is worth, and what is kept beside it
options.py  pipeline.py             what is asked for, and the stages in order
"""

from __future__ import annotations

from taslak.training.options import KINDS, TrainingOptions
from taslak.training.pipeline import Trained, train
from taslak.training.trainer import Schedule

__all__ = ["KINDS", "Schedule", "Trained", "TrainingOptions", "train"]
