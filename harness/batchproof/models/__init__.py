"""Models under test; `catalogue.py` lists them."""
