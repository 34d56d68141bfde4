"""Query formulations: the query for the retriever once a trigger has fired. Each works with every trigger."""

from __future__ import annotations

from probers.parts import exporting, exports

from ..protocol import QueryFormulator

__all__ = ["QueryFormulator", *exports(__name__)]

__getattr__ = exporting(__name__)
