"""How a chat looks: replies on standard output as they come, all else on standard error.

Whatever a model or a server says is made harmless first: text that holds a terminal's control sequences could
rename its window, move its cursor over what was said before, or type.
"""

from __future__ import annotations

import sys

ACCEPTED = "green"

_HARMLESS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},  # ␛ for escape, and so on
    ord("\r"): None,  # of a line's end; alone it would write over the line
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),  # the same controls once more, in one code point
}


def harmless(text: str) -> str:
    """`text` with pictures in place of control characters; line ends and tabs stay."""
    return text.translate(_HARMLESS)


class Screen:
    """Text of accepted draft tokens is coloured where the output is a terminal that has colours."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.style import Style

        console = Console()
        coloured = console.color_system is not None and not console.no_color and not console.legacy_windows
        self._style = Style(color=ACCEPTED) if coloured and sys.stdout.isatty() else None
        self._last = "\n"

    def write(self, text: str, accepted: bool) -> None:
        """The next piece of a reply."""
        out = sys.stdout
        encoding = getattr(out, "encoding", None) or "utf-8"
        text = harmless(text).encode(encoding, "replace").decode(encoding)
        if not text:
            return
        out.write(self._style.render(text) if accepted and self._style is not None else text)
        out.flush()
        self._last = text[-1]

    def end(self) -> None:
        """The reply is over: its last line ends."""
        if self._last != "\n":
            self.write("\n", False)

    def note(self, text: str) -> None:
        """Something for the person, not for the pipe."""
        sys.stdout.flush()
        print(harmless(text), file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        """What went wrong, on one line."""
        self.note("error: " + " ".join(text.split()))
