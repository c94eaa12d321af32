"""One engine before the whole suite, and the verdict on it as a page.

command   the command line: which engines, where to, resume
session   pytest in processes of its own; an engine that ends its process costs one test
issues    what is known of failures: causes, threads, documented conventions
groups    failures of one issue, or of one test and promise, together
verdict   entries of the journal (`batchproof.records.journal`) -> `batchproof.records.verdict`
replays   failure files, run again
output    the folder of a verdict, without paths of this machine
page      a verdict -> Markdown
index     all verdicts of a folder as one table
"""
