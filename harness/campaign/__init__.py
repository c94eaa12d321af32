"""Many hunts by many processes: what proves the suite itself.

`faults.py` (`python -m harness faults`) runs it against every planted fault and writes the kill table;
`honest.py` (`python -m harness honest`) runs it against honest engines and wants no alarm. Both spread
their tasks over the processes of `crew.py`; each task is one or two calls of `harness.hunt.hunt`, in a
laboratory (`shelter.py`) that lives as long as its process.
"""
