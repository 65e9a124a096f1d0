"""A conversation at a terminal: its messages, who answers, commands, and how it looks.

Nothing here knows whether a model in this process answers or a server; that is a `Backend`'s business.
"""

from __future__ import annotations
