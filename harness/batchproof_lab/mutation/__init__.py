"""Mutants of an engine: its source with one point changed, before the conformance suite."""
