"""Engines behind the contract of `batchproof.api`. Within the harness, only `batchproof.run.registry`
imports from this package."""
