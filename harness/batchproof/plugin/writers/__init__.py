"""What a run writes: pure functions from the records of its tests to texts and result files.

table   the table engine x promise, the lines below it in the terminal, and the verdict on the engine
page    summary.md, for a job summary or a comment

The journal is written line by line by `batchproof.records.journal`; `recorder.py` calls all of them.
"""
