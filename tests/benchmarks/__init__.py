"""The benchmarks, which the wheel holds as `batchproof.benchmarks`."""
