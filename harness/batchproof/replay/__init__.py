"""A failure as data that can be run again.

`record` is the file, `write` creates it beside a YAML case and a stand-alone script, `judge` runs it
again with the checks of the suite, and `replay_command` is `python -m batchproof replay`.
"""
