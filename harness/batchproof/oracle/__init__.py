"""The right answers, how far rounding may move them, and which precision an engine declares."""
