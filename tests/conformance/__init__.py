"""The conformance suite: one file a promise or group of promises. The wheel holds it as
`batchproof.suite`; its modules import `batchproof` and the libraries, nothing of each other."""
