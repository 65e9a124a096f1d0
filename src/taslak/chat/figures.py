"""What replies took, one and many. What the words mean is defined in `core.counts`."""

from __future__ import annotations

from dataclasses import dataclass, field

from taslak.core.counts import Counts


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one reply; None where whoever answered doesn't say.

    seconds: from the request to the reply's end, the prompt's reading included
    counts:  None where nothing is known of drafts
    speedup: estimated, over plain decoding
    gamma:   None = chosen as it went
    """

    seconds: float
    tokens: int | None = None
    counts: Counts | None = None
    speedup: float | None = None
    method: str | None = None
    gamma: int | None = None
    seed: int | None = None

    def __str__(self) -> str:
        how = []
        if self.counts is not None and self.method is not None:
            how = [self.method] if self.gamma is None else [self.method, f"γ {self.gamma}"]
        seed = [] if self.seed is None else [f"seed {self.seed}"]
        return " · ".join([*_shown(self.tokens, self.seconds, self.counts, self.speedup), *how, *seed])


@dataclass(slots=True)
class Totals:
    """Of all finished replies of a session.

    tokens, seconds: of those whose tokens are known
    plain, took:     of those whose speed-up is known, seconds as they would have been and as they were
    """

    replies: int = 0
    tokens: int = 0
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    plain: float = 0.0
    took: float = 0.0

    def add(self, figures: Figures) -> None:
        """One more reply."""
        self.replies += 1
        if figures.tokens is not None:
            self.tokens += figures.tokens
            self.seconds += figures.seconds
        if figures.counts is not None:
            self.counts.add(figures.counts)
        if figures.speedup is not None:
            self.plain += figures.speedup * figures.seconds
            self.took += figures.seconds

    def __str__(self) -> str:
        counts = self.counts if self.counts.passes else None
        speedup = self.plain / self.took if self.took else None
        return " · ".join(_shown(self.tokens if self.seconds else None, self.seconds, counts, speedup))


def _shown(tokens: int | None, seconds: float, counts: Counts | None, speedup: float | None) -> list[str]:
    if tokens is None:
        shown = [f"{seconds:.1f} s (the server doesn't say how many tokens)"]
    else:
        shown = [f"{tokens} tokens", f"{tokens / seconds if seconds else 0.0:.1f} tokens/s"]
    if counts is not None:
        shown += [
            f"{counts.passes} passes",
            f"τ {_number(counts.tau)}",
            f"acceptance rate {_number(counts.acceptance_rate)}",
            f"α {_number(counts.alpha)}",
        ]
    if speedup is not None:
        shown.append(f"estimated speed-up {speedup:.2f}")
    return shown


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
