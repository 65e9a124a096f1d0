"""Propose, forward, verify, commit: the one loop, for many sequences at once."""
