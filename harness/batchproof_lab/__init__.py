"""The laboratory, which no wheel holds: campaigns that test the suite itself, spread over worker
processes and machines.

`faults_command.py` runs the suite against every planted fault and writes the kill table.
`honest_command.py` runs it against honest engines and expects no failure. `mutation/` runs it against
an engine changed at one point. `model_sweep/` tries one engine on every causal LM of transformers. A
task is one or two calls of `run_suite`, in a laboratory that lives as long as its process.

All of them are a `work.Work`: its outcomes go to a journal, and `found.Found` adds up journals.
`merge_command.py` makes a result out of journals alone.
"""
