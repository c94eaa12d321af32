"""Is it corruption, rounding or a configuration? An answer for a running engine, from its tokens alone.

`triage` holds the rule of decision. `scoring` reads answers against a local reference in float64,
`configurations` lists what else the engine might have been told to do, `probes` and `scenes` what it is
asked, and `evidence` makes what was found small and replayable.
"""
