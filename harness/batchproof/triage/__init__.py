"""Is it corruption, rounding or a setting? An answer for a running engine, from its tokens alone.

`triage` holds the rule of decision, `regret` the distance of tokens from the best ones in the oracle's
float64, `configurations` the table of settings, `probes` and `scenes` what an engine is asked, and
`evidence` makes what was found small and replayable.
"""
