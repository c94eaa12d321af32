"""`batchproof invariance`: the grades of engines as a table. What measures them is in
`batchproof.run.invariance`."""
