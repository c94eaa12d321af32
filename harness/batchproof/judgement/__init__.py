"""One engine under the whole suite, and the verdict on it as a page.

`judge_command` is the command line: which engines, where to write, whether to resume; it also runs
failure files again. `session` runs pytest in processes of its own, so that an engine that ends its
process costs one test. `output` writes the folder of a verdict, without paths of this machine, and the
table of all verdicts; `verdict_page` writes a verdict as Markdown. `requirements_command`,
`verify_command` and `badge_command` are `batchproof judge requirements`, `verify` and `badge`.
"""
