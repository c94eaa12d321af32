"""A failure as data that can be run again.

`record` is the file, `write` creates it and a YAML case, `judge` runs it again with the checks of the
suite, and `replay_command` is `python -m batchproof replay`.
"""
