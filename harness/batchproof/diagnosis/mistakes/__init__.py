"""Mistakes by what they concern; each family yields those that a suspect may have made."""
