"""Batchproof: proves that an LLM engine's batching changes nothing but its speed.

An engine's author reads `batchproof.api` and nothing else.
"""
