"""References of docstrings: a name that no page describes must at least be there.

What has a page is linked by Sphinx. Of the rest a type in a signature stands as text, and a name that a
docstring refers to is looked up in the package, so that one that is gone is a warning.
"""

from __future__ import annotations

import pkgutil

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def there(name: str, module: str | None) -> bool:
    """Return whether a dotted name, absolute or within a module or a package around it, names anything."""
    parts = module.split(".") if module else []
    around = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    for full in (name, *(f"{room}.{name}" for room in around), f"builtins.{name}"):
        try:
            pkgutil.resolve_name(full)
            return True
        except (ImportError, AttributeError, ValueError):
            continue
    return False


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, told: nodes.Element
) -> nodes.Element | None:
    """The text of a reference to Python that no page describes, None for a warning."""
    if node.get("refdomain") != "py":
        return None
    if not isinstance(told, nodes.literal):  # of a signature
        return told
    cls, module = node.get("py:class"), node.get("py:module")
    names = [node["reftarget"], *([f"{cls}.{node['reftarget']}"] if cls else [])]
    return told if any(there(name, module) for name in names) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Have it asked after Sphinx's own domains."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
