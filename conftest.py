"""The harness is a pytest plugin; everything it does lives in `harness/plugin`."""

pytest_plugins = ["harness.plugin", "pytester"]
