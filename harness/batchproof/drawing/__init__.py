"""Slot timelines as values and pictures, attention masks as text, and the frame of every picture."""
