"""Resolves an engine, builds it, runs it on a model within limits, and judges it."""
