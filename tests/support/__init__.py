"""Shared by the tests: tiny random models and scripted drafters."""
