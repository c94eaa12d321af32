"""The promises, dated sets of requirements, and the verdict that finished tests add up to."""
