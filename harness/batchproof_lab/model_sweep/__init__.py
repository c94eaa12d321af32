"""Every causal LM of transformers as a tiny random model, tried on one engine.

`sweep_command.py` is `batchproof lab models`. `shrink.py` makes any configuration small by the
names of its fields, `config_fixes.py` holds what the names do not say, and `toys.py` builds the models.
`toy_oracle.py` measures what a toy can prove, `toy_check.py` gives the verdict, and `sweep_page.py`
writes the table.
"""
