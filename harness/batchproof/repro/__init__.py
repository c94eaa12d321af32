"""`--repro DIR`: a failure to paste.

A failed conformance test leaves a script that shows the failure again, a YAML case that does the same
within the suite, and the model, in a folder that can be sent to the engine's author. The script needs
`batchproof.api` and the engine; no pytest, no Hypothesis, nothing of the suite.

    serving.py, looking.py, rules.py    functions that are copied into scripts as they stand
    failed.py                           the failure, and the rule that found it
    checks.py                           which of those functions it needs, and with what
    script.py                           the text of a script, from the pieces that functions.py,
                                        parts.py and literals.py make
    engines.py, models.py               how it gets its engine and its model
    case.py                             the YAML
"""
