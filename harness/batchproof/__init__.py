"""Batchproof: proves that an LLM engine's batching changes nothing but its speed.

An engine's author reads `batchproof.api` and nothing else.
"""

__version__ = "0.1.0"  # that of the code that runs, even where another release is installed
