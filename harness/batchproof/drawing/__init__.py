"""Slot timelines: who held which slot when, as values and as pictures."""
