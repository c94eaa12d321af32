"""Mutants of an engine: its source with one point changed, before the conformance suite.

`mutants_command.py` is `batchproof lab mutants`. `operators.py` finds the points of a source, each as
a value, `mutated_import.py` makes Python import it, `mutant_task.py` lets the suite
judge it, and `mutants_page.py` writes the table.
"""
