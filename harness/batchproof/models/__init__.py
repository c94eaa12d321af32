"""Models under test. See `catalogue.py` for the list."""
