"""The verdict: is an answer right, and did the engine behave? A check raises if not."""
