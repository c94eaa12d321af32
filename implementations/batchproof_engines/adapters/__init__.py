"""Engines of other people behind the contract of `batchproof.api`: what ours are measured against."""
