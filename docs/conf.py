"""Builds the documentation site: `sphinx-build -W -n docs build/docs`, with the extra `docs` installed.

BATCHPROOF_SOURCE_URL, if set, is where the files of the repository can be read, such as the address of
its folder at a release: links from pages to files outside `docs/` then lead there. Without it such a
link becomes plain text, and an image is copied.
"""

import os
import sys
from pathlib import Path

from batchproof import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Batchproof"
release = version = __version__
html_title = f"Batchproof {release}"

extensions = ["myst_parser", "outside_links"]
exclude_patterns = ["_ext", "examples"]
source_url = os.environ.get("BATCHPROOF_SOURCE_URL", "")

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4  # GitHub makes an anchor of every heading; links rely on them
smartquotes = False  # `--option` is no dash

highlight_language = "text"  # a block without a language is a command or its output
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
