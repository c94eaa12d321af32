"""What a check finds, as values, and the one place where they become text."""
