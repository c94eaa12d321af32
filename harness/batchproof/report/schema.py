"""The names of what the report reads and others write. Imports nothing, so that both may import it."""

from __future__ import annotations

CONFORMANCE = "batchproof.conformance/1"
