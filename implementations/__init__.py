"""Engines behind the contract of `harness.api`. Only `harness.registry` looks in here."""
