"""Is it corruption, rounding or a setting? An answer for a running engine, from its tokens alone.

`triage` holds the rule of decision, `configurations` the table of settings and the distance of tokens
from the best ones in float64 under each, `probes` what an engine is asked, and how that is made small.
"""
