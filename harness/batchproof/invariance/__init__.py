"""How far an engine's answers depend on what should not matter, measured and graded (P20).

`grades` defines the grades, `axes` what is varied, and `measure` gives the grade along an axis and
holds an engine to what it declares. `judgement.invariance_command` makes the table.
"""
