"""Names the most likely cause of a failure, from evidence.

diagnose        the order in which evidence is asked, and the cause that it gives
reruns          the engine again, unchanged or with one thing changed
explain         the mistake under which the reference gives the engine's answer
counterfactual  the reference as an engine fed it, with a mistake
hypotheses      what a mistake would make of right logits
sizes           the size from which on answers are wrong
mistakes        all those mistakes, by family
"""
