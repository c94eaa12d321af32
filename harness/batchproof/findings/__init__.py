"""Findings, failures and causes as values, and the one place where they become text."""
