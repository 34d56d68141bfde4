"""Sources of articles: the testbed, a JSONL file, a live Wikipedia or a dataset of the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...options import check_options
from ...types import UserError
from ..records import BadLine
from ..splits import limited
from .base import ArticleSource, Problems, Rules, Wikipedia

__all__ = ["ArticleSource", "Problems", "Rules", "open_articles"]


def open_articles(
    spec: Any,
    *,
    limit: int | None = None,
    seed: int = 0,
    on_bad_line: BadLine = "error",
    rules: Rules = Rules(),
    wikipedia: Mapping[str, Any] | None = None,
) -> ArticleSource:
    """Open articles, which come one at a time with a split, and a list of unusable ones.

    The network of ``wikipedia`` is first used during iteration, that of ``hf:`` here.

    Args:
        spec: testbed, the path of a file (:func:`probers.data.records.file_rows`), wikipedia,
            ``hf:<dataset id>[:<config>][:<split>]``, or rows with title and text or sentences
            (:func:`probers.data.rows.records_of`).
        limit: largest number of usable articles, drawn by ``seed``; None takes all.
        seed: also deals articles to splits, by title.
        on_bad_line: policy for a malformed line; an empty or short article is a problem, never an error.
        wikipedia: the fields of :class:`~.base.Wikipedia`.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit={limit} leaves nothing: give 1 or more, or null for all")
    if isinstance(spec, str) and spec == "testbed":
        from ...testbed.assets import load_articles

        items = limited(load_articles(), limit, seed)
        return ArticleSource(spec, iter(items), Problems(), len(items))
    if isinstance(spec, str) and spec == "wikipedia":
        from .wikipedia import open_wikipedia

        check_options(Wikipedia, wikipedia or {}, "wikipedia.")
        options = Wikipedia(**(wikipedia or {}))
        return open_wikipedia(options, limit=limit, seed=seed, rules=rules)
    from .files import open_hub, open_rows

    if isinstance(spec, str) and spec.startswith("hf:"):
        return open_hub(spec, limit=limit, seed=seed, rules=rules)
    return open_rows(spec, limit=limit, seed=seed, on_bad_line=on_bad_line, rules=rules)
