"""Says, once, that a drafter is right too rarely to be worth what it costs.

For methods that ought to be right: a look-up that finds nothing good is no mistake of the user's.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

ENOUGH = 64
"""Drafts before anything is said; the first few of an answer prove nothing."""


class Watch:
    """Counts how often the first token of a draft was right.

    what:    who drafts, as a user would say it
    least:   the share of right first tokens below which drafting can't pay
    advice:  what the user can do about it
    """

    def __init__(self, what: str, least: float, advice: str) -> None:
        self._what = what
        self._least = least
        self._advice = advice
        self._drafts = self._right = 0
        self._told = False

    def record(self, right: bool) -> None:
        """One draft was judged; `right`: its first token was accepted."""
        self._drafts += 1
        self._right += right
        if not self._told and self._drafts >= ENOUGH and self._right < self._least * self._drafts:
            self._told = True
            log.warning(
                "%s drafts badly: the first token was right in %d of %d drafts, and below %.0f %% "
                "drafting costs more time than it saves. The text is unaffected. %s",
                *(self._what, self._right, self._drafts, 100 * self._least, self._advice),
            )


def head_watch(kind: str) -> Watch:
    """For a head that reads the target's features: one draft in twenty pays for nothing."""
    advice = "Was it trained for this model, these layers and this dtype?"
    return Watch(f"the head (method {kind})", 0.05, advice)
