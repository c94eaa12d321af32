"""One engine under the whole suite, and the verdict on it as a page.

`judge_command` is the command line: which engines, where to write. It runs pytest in processes of its
own, so that an engine that ends its process costs one test, and then failure files again. `output`
writes the folder of a verdict, without paths of this machine, with its page in Markdown, and the table
of all verdicts. `matrix_command` and `releases_command` judge configurations and releases; `possible`
finds out first which of them can be had.
"""
