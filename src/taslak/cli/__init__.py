"""The command line: one file a command, no logic of its own. Nothing heavy is imported at start-up."""

from taslak.cli.app import main

__all__ = ["main"]
