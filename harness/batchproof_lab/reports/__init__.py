"""Defects of released libraries as reports to their maintainers.

`upstream_report.py` reads what people found out, `recording.py` runs the scripts that show a defect
with the library alone, `report_pages.py` writes both as Markdown. Nothing is sent.
"""
