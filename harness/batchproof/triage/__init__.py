"""Is it corruption, rounding or a setting? An answer for a running engine, from its tokens alone.

making -> a probe pack; its probes -> scenes -> asking -> hypotheses -> deciding, or watching
"""
