"""What a run writes: pure functions from the records of its tests to texts and result files.

session   facts of the run that no record of a test holds
table     the table engine x promise
summary   the lines below it in the terminal
verdict   the verdict on each engine
junit     the properties of a test in JUnit XML
problems  failures grouped by the mistake that they look like
page      summary.md, for a job summary or a comment

The journal is written line by line by `batchproof.records.journal`; `recorder.py` calls all of them.
"""
