"""Sphinx directives `module-tree` and `figure-table`: lists that are made from the code they describe."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from probers.prober import figures

ROOT = Path(__file__).parents[2]


def described(path: Path) -> str:
    """Read the first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).rstrip(".")


def tree(folder: Path, depth: int = 0) -> Iterator[str]:
    """List a folder, its modules and the folders in it, a line each."""
    yield f"{'  ' * depth}{folder.name}/".ljust(25) + described(folder / "__init__.py")
    for path in sorted(folder.glob("*.py")):
        if path.stem != "__init__":
            yield f"{'  ' * (depth + 1)}{path.stem}".ljust(25) + described(path)
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists() and not path.is_symlink():
            yield from tree(path, depth + 1)


class ModuleTree(SphinxDirective):
    """All modules with the first sentence of each: `{module-tree}`."""

    def run(self) -> list[nodes.Node]:
        """Make one block of text."""
        rooms = ("probers", "datagen", "train", "rag", "serve")
        lines = [line for room in rooms for line in tree(ROOT / room)]
        return [nodes.literal_block("", "\n".join(lines), language="text")]


def figure_rows() -> Iterator[tuple[str, str, str]]:
    """List name, type and meaning of figures, part by part, without intervals and what a part inherits."""
    for name, part in vars(figures).items():
        if not (isinstance(part, type) and issubclass(part, figures.Part)) or part is figures.Part:
            continue
        bases = " and ".join(base.__name__ for base in part.__bases__ if base is not figures.Part)
        yield name, f"also {bases}" if bases else "", ""
        for field, kind in part.__annotations__.items():
            if field in part.model_fields and not field.endswith("_ci"):
                about = part.model_fields[field]
                kind = kind.replace(" | None", " or null").replace("Number", "float or null")
                yield about.alias or field, kind, " ".join((about.description or "").split())


class FigureTable(SphinxDirective):
    """The schema of `metrics.json`: `{figure-table}`."""

    def run(self) -> list[nodes.Node]:
        """Make a table with a row for each figure, below one for the part that it belongs to."""
        body = nodes.tbody()
        for name, kind, meaning in figure_rows():
            title = nodes.strong if not meaning else nodes.literal
            cells = [title("", name), nodes.inline("", kind), nodes.inline("", meaning)]
            body += nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))
        columns = [nodes.colspec(colwidth=width) for width in (1, 1, 3)]
        return [nodes.table("", nodes.tgroup("", *columns, body, cols=3))]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives."""
    app.add_directive("module-tree", ModuleTree)
    app.add_directive("figure-table", FigureTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
