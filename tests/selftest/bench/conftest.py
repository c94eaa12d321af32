"""The fixture of tests on a simulated clock."""

from tests.selftest.bench.simulated import clock

__all__ = ["clock"]
