"""One engine under the whole suite, and the verdict on it as a page.

`judge_command` is the command line: which engines, where to write, whether to resume. `session` runs
pytest in processes of its own, so that an engine that ends its process costs one test. `issues` holds
what is known of failures: causes, threads, documented conventions. `batchproof.requirements` makes the
verdict of the session's journal and of these. `replays` runs failure files again. `output` writes the
folder of a verdict, without paths of this machine. `verdict_page` and `index` write a verdict, and all
verdicts of a folder, as Markdown. `upstream_report`, `recording` and `report_pages` make reports to
maintainers of what was found.
"""
