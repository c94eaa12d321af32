"""Curated cases: YAML files, their schema, and how one is run."""
