"""The harness is a pytest plugin; everything it does lives in `harness/batchproof/plugin`."""

pytest_plugins = ["batchproof.plugin", "pytester"]
