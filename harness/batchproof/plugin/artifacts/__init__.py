"""`--artifacts=DIR`: all that a CI system keeps or shows of a run, in one folder.

    folder.py        the option; collects the reports and writes the files
    problems.py      the failures of a run, grouped by the mistake that they look like
    summary_page.py  summary.md, for a job summary or a comment
    sarif.py         results.sarif, for code scanning
    code_quality.py  code-quality.json, for GitLab
    annotations.py   workflow commands of GitHub, printed wherever it runs the tests

The folder also gets `table.json`, `junit.xml` and `failures/`, as --table, --junitxml and --repro write
them.
"""
