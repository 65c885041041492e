"""Unlearning methods, one per file; see `registry.py` for how a new one is added."""
