"""Beside other projects: what was made here, used there."""
