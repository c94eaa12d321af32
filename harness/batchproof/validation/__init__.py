"""Validation of what people write: flags, YAML and TOML files and values of options.

Every complaint has one form: it names the value, the rule and the choices. `values.py` holds the rules,
`yaml_nodes.py` applies them to nodes of a YAML file and adds file and line (`source_lines.py`);
`toml_files.py` makes such nodes of a TOML file.
"""
