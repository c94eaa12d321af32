"""Workloads as values, and as YAML."""
