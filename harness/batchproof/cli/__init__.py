"""The commands of `python -m batchproof`."""
