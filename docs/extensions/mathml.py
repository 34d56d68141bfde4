"""Formulas as MathML, which browsers draw themselves: a page needs no script and nothing from elsewhere."""

from __future__ import annotations

import re
from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_LOG = logging.getLogger(__name__)


def drawn(node: nodes.math | nodes.math_block, as_block: bool = False) -> str:
    """A formula as MathML; what cannot be read is a warning, and stands as it was written."""
    # docutils knows neither the short form of a fraction nor this name of three dots.
    formula = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", node.astext()).replace(r"\dots", r"\ldots")
    try:
        return tex2mathml(formula, as_block=as_block)
    except MathError as error:
        _LOG.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{escape(node.astext())}</code>"


def inline(writer: HTML5Translator, node: nodes.math) -> None:
    """A formula within a line."""
    writer.body.append(drawn(node))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own, which scrolls where the page is narrower."""
    writer.body.append(f'<div class="math-block">{drawn(node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Make it one of Sphinx's renderers."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
