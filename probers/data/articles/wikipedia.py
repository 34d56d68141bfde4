"""Articles of a live Wikipedia: by title, by category or at random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from ...files import check_file
from ...types import Article, RunError, UserError
from ..splits import Splits
from .base import ArticleSource, Problems, Progress, Rules, UnusableError, Wikipedia, clean, prose
from .wikipedia_client import Client, FetchError


def open_wikipedia(
    options: Wikipedia, *, limit: int | None, seed: int, rules: Rules, progress: Progress
) -> ArticleSource:
    """Open the articles of a Wikipedia; the network is first used when they are iterated.

    A limit counts usable articles: further titles replace unusable ones.

    Raises:
        UserError: options that make no request, no title, or random pages without a limit.
    """
    options.check()
    if options.random and limit is None:
        raise UserError("wikipedia.random=true needs a limit: pass limit=300, for example", "missing-value")
    titles = _title_list(options) if options.titles else []
    total = min(limit or len(titles), len(titles)) if titles else limit
    problems = Problems()

    def articles() -> Iterator[Article]:
        done, total, splits = 0, limit, Splits(seed)
        seen: dict[int, str] = {}
        with closing(Client(options, lambda text: progress(done, total, text))) as client:
            if options.random:
                names = _random_titles(client, seed, limit or 1, problems)
            else:
                asked = _category_titles(client, options, problems) if options.category else titles
                if limit is not None and limit < len(asked):
                    random.Random(f"limit:{seed}").shuffle(asked)
                total = min(limit or len(asked), len(asked))
                names = iter(asked)
            for title in names:
                progress(done, total, title)
                try:
                    article = _article(title, client.page(title), rules, splits, seen)
                except FetchError as error:
                    problems.add(title, f"not fetched: {error}", failure=True)
                except UnusableError as error:
                    problems.add(title, str(error))
                else:
                    done += 1
                    yield article
                    if done == limit:
                        break
            progress(done, total, "done")

    return ArticleSource("wikipedia", articles(), problems, total)


def _title_list(options: Wikipedia) -> list[str]:
    """The distinct titles of the option or of its file, in their order.

    Raises:
        UserError: the file is missing or there is no title.
    """
    titles: Sequence[Any] = options.titles or []
    if isinstance(options.titles, str):
        try:
            check_file(options.titles)
            titles = Path(options.titles).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"wikipedia.titles={options.titles} cannot be read as a text file ({error}); "
                "give one with a title per line, or a list like [Paris,Berlin]",
                "no-file" if isinstance(error, FileNotFoundError) else "bad-file",
            ) from error
    made = list(dict.fromkeys(" ".join(clean(str(t)).replace("_", " ").split()) for t in titles))
    made = [t for t in made if t]
    if not made:
        raise UserError(f"wikipedia.titles={options.titles} holds no title", "empty")
    return made


def _article(title: str, page: dict[str, Any], rules: Rules, splits: Splits, seen: dict[int, str]) -> Article:
    """The article of a fetched page.

    Raises:
        UnusableError: the page is missing, a disambiguation or a repetition, or ``rules`` refuse it.
    """
    if page["status"] == "missing":
        raise UnusableError("missing: there is no page of this title")
    if page["status"] == "disambiguation":
        raise UnusableError("disambiguation page")
    if page["pageid"] in seen:
        raise UnusableError(f"repeated: the same article as {seen[page['pageid']]}")
    article = rules.article(page["title"], prose(clean(page["text"])), split=splits)
    seen[page["pageid"]] = title
    return article


def _category_titles(client: Client, options: Wikipedia, problems: Problems) -> list[str]:
    """Titles of the pages of a category and of its subcategories, each once, nearest first.

    Raises:
        RunError: the category itself cannot be fetched.
    """
    name = str(options.category).strip().replace("_", " ")
    name = name if name.casefold().startswith("category:") else f"Category:{name}"
    waiting = deque([(name, 0)])
    known = {name}
    titles: dict[str, None] = {}
    while waiting:
        category, level = waiting.popleft()
        try:
            members = client.members(category)
        except FetchError as error:
            if level == 0:
                raise RunError(
                    f"wikipedia.category={options.category} was not fetched: {error}", "network"
                ) from error
            problems.add(category, f"not fetched: {error}", failure=True)
            continue
        titles.update(dict.fromkeys(members["pages"]))
        for sub in members["categories"]:
            if level < options.depth and sub not in known:
                known.add(sub)
                waiting.append((sub, level + 1))
    if not titles:
        problems.add(name, f"empty category: no page within depth {options.depth}")
    return list(titles)


def _random_titles(client: Client, seed: int, limit: int, problems: Problems) -> Iterator[str]:
    """Titles drawn by the Wikipedia, those kept for this seed first; at most about 20 times the limit."""
    try:
        yield from islice(client.random_titles(seed, batch=limit), 20 * limit + 100)
    except FetchError as error:
        problems.add("random pages", f"not fetched: {error}", failure=True)
