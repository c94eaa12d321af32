"""The laboratory, which no wheel holds: campaigns that test the suite itself.

`faults_command.py` runs the suite against every planted fault and writes the kill table,
`honest_command.py` against honest engines. Each is a `campaign.Campaign` of tasks in worker processes,
and leaves a record and its page, of a template in `pages/`. `verifier_command.py` measures the power of
triage, and `reports_command.py` writes to maintainers what was found.
"""
