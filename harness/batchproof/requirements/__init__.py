"""The promises, the sentences of the contract, and the verdict that finished tests add up to."""
