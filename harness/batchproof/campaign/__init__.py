"""Campaigns that test the suite itself, spread over worker processes.

`faults.py` runs the suite against every planted fault and writes the kill table; `honest.py` runs it
against honest engines and expects no failure. A task is one or two calls of `run_suite`, in a
laboratory that lives as long as its process.
"""
