"""Comparing ways of drafting with plain decoding: what is run, what came of it, and how it is shown.

suite/  prompts.py  padding.py      what is asked: our own tasks, files of others, longer contexts
grid.py                             which ways under which settings
methods.py                          the models that answer: the only file that makes any
decoding.py run.py  log.py          one timed call; all of them in turns; what is kept meanwhile
passes.py  why.py                    what a pass costs, how far drafter and target agree
results.py figures.py               what was measured, and what is read out of it
table.py   specbench.py             as Markdown, as Spec-Bench's answers
plots.py   drawing.py  gallery.py   as pictures
report.py                           as one page that needs nothing else
"""

from __future__ import annotations
