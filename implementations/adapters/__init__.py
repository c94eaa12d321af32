"""Engines of other people behind the contract of `harness.api`: what ours are measured against."""
