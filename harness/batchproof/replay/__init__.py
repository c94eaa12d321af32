"""A failure as data that can be run again.

`record` is the file, `write` makes it beside a YAML case and a stand-alone script, `judge` runs it
again with the checks of the suite, `command` is `python -m batchproof replay`.
"""
