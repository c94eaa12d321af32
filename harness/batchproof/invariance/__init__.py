"""How far an engine's answers depend on what should not matter, measured and graded (P20).

`grades` defines the grades, `axes` what is varied, `control` what must differ in every run, `measure`
gives the grade along an axis, `holding` holds an engine to what it declares, and `invariance_command`
makes the table of `batchproof invariance`.
"""
