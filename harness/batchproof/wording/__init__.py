"""The text of findings, failures and diagnoses, for people. Nothing reads it back."""
