"""Every error taslak raises on purpose, in one tree.

    TaslakError
    ├── UserError              a mistake the caller can mend: one clear line, exit code 2
    │   ├── OptionError            a setting out of range or in conflict with another
    │   ├── ModelNotFound          a name that is no folder, file, pack or reachable Hub id
    │   ├── CheckpointError        a broken, truncated or unsupported weight file
    │   ├── TokenizerMismatch      draft and target spell the same id differently
    │   ├── PromptError            a prompt that is empty or can't be used
    │   │   └── ContextFull            a prompt that leaves no room for an answer in the context
    │   ├── DownloadError          no network, a failed fetch, a digest that differs
    │   ├── DiskError              not enough free disk for what was asked
    │   ├── MemoryLimitError       not enough free memory for what was asked
    │   └── ServerError            a server that is gone, refuses, or breaks off
    ├── DraftError             a drafter proposed something malformed; the engine drops the draft
    └── SamplingError          a visited logits row holds no usable distribution; fails that request alone
        └── NothingToChoose        the request's own settings leave no token

A message says what was given, what was expected, and what to do about it.
"""

from __future__ import annotations


class TaslakError(Exception):
    """Root of the tree; never raised itself."""


class UserError(TaslakError):
    """Something the caller gave can't be used; the message is fit to be shown as it is."""


class OptionError(UserError, ValueError):
    """A setting is out of range or conflicts with another."""


class ModelNotFound(UserError, LookupError):
    """A model name resolves to nothing."""


class CheckpointError(UserError):
    """A weight file is broken, truncated, misshapen or of an unsupported kind."""


class TokenizerMismatch(UserError):
    """A draft model's tokenizer is not the target's."""


class PromptError(UserError, ValueError):
    """A prompt is empty or can't be used."""


class ContextFull(PromptError):
    """A prompt leaves no room for an answer in the context."""


class DownloadError(UserError):
    """A model could not be fetched, or what arrived is not what was pinned."""


class DiskError(UserError):
    """Not enough free disk."""


class MemoryLimitError(UserError):
    """Not enough free memory."""


class ServerError(UserError):
    """A server can't be reached, refuses a request, or breaks off."""


class DraftError(TaslakError, ValueError):
    """A draft is malformed: not a tree, ids outside the vocabulary, or an impossible q."""


class SamplingError(TaslakError, ValueError):
    """A logits row on the visited path is NaN, or the settings left no token to choose."""


class NothingToChoose(SamplingError):
    """The settings of a request leave no token to choose."""
