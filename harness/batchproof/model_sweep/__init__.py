"""Every causal LM of transformers as a tiny random model, before one engine.

`command.py` is `python -m batchproof models`. `shrink.py` makes any configuration small by the names of
its fields, `tables.py` knows what names do not tell, `toys.py` makes models of both. `judge.py` holds
the engine against per-prompt generation, `workers.py` has that done in processes that may crash or
hang, `page.py` writes the table.
"""
