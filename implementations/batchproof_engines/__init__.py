"""Engines behind the contract of `batchproof.api`. Only `batchproof.run.registry` looks in here."""
