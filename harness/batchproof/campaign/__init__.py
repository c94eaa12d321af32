"""Many suite runs by many processes: what proves the suite itself.

`faults.py` runs it against every planted fault and writes the kill table; `honest.py` runs it against
honest engines and expects no failure. Both spread their tasks over the processes of `crew.py`; each
task is one or two calls of `hunt`, in a laboratory (`shelter.py`) that lives as long as its process.
"""
