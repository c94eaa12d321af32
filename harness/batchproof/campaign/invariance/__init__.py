"""How far an engine's answers depend on what should not matter, measured and graded.

`grades` defines the grades, `axes` what is varied, `control` what must differ in every run.
"""
