"""`python -m taslak`: the command line."""

from __future__ import annotations

from taslak.cli import main

if __name__ == "__main__":
    main()
