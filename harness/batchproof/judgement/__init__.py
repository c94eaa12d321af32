"""One engine before the whole suite, and the verdict on it as a page.

command   the person's side: which engines, where to, resume
session   pytest in processes of its own; an engine that takes its process along ends one test
verdict   lines of the journal (`batchproof.plugin.journal`) -> promises held, broken, and by what
findings  what people know about failures: causes, threads, documented conventions
page      a verdict -> Markdown
index     all verdicts of a folder as one table
"""
