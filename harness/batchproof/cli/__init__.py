"""Commands of `batchproof` that have no room of their own."""
