"""Settings of the documentation's site: `make docs`, or sphinx-build -W docs build/docs."""

import sys
from pathlib import Path

import probers

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "probers"
author = "the probers authors"
copyright = author
version = release = probers.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "command_help",
    "mathml",
    "references",
    "made_tables",
]
myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 4
exclude_patterns = ["extensions", "static"]

default_role = "code"
nitpicky = True
# Attributes that a class lists are looked up on the whole site, where several classes have one of that name.
suppress_warnings = ["ref.python"]
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"probers {release}"
html_static_path = ["static"]
html_css_files = ["probers.css"]
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"
