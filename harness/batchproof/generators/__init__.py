"""Hypothesis strategies for workloads: prompts, caps, EOS ids, limits, arrivals, crossings."""
