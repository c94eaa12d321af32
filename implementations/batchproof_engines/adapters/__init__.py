"""Engines by others behind the contract of `batchproof.api`: ours are compared with them."""
