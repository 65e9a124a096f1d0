"""Trained heads in our own format."""
