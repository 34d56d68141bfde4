"""Articles of a live Wikipedia, by title, by category or at random; each page is fetched once.

Requests, timeouts and repetitions are those of the wikipedia-api package.
"""

from __future__ import annotations

import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from datetime import timezone
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

import probers

from ...checksums import made_once, sealed
from ...files import cache_folder, digest, write_text
from ...types import Article, RunError, UserError, first_line
from ..records import UnusableError, given_records, open_text
from ..splits import Splits
from .base import ArticleSource, Problems, Rules, Wikipedia, clean, prose


def open_wikipedia(options: Wikipedia, *, limit: int | None, seed: int, rules: Rules) -> ArticleSource:
    """Open the articles of a Wikipedia; its network is first used when they are iterated.

    A limit counts usable articles: further titles replace unusable ones.
    """
    options.check()
    if options.random and limit is None:
        raise UserError("wikipedia.random=true needs a limit: pass limit=300, for example", "missing-value")
    titles = _title_list(options) if options.titles else []
    total = min(limit or len(titles), len(titles)) if titles else limit
    problems = Problems()

    def articles() -> Iterator[Article]:
        done, splits = 0, Splits(seed)
        seen: dict[int, str] = {}
        client = _Client(options)
        with closing(client.transport):
            if options.random:
                names = client.random_titles(seed, limit or 1, problems)
            else:
                listed = _category_titles(client, options, problems) if options.category else titles
                if limit is not None and limit < len(listed):
                    random.Random(f"limit:{seed}").shuffle(listed)
                names = iter(listed)
            for title in names:
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

    return ArticleSource("wikipedia", articles(), problems, total)


def _title_list(options: Wikipedia) -> list[str]:
    titles: Iterable[Any] = options.titles or []
    if isinstance(titles, str):
        give = "a text file with a title per line, or a list like [Paris,Berlin]"
        with open_text(given_records("wikipedia.titles", titles, give)) as (lines, _):
            titles = list(lines)
    names = (" ".join(clean(str(title)).replace("_", " ").split()) for title in titles)
    if not (distinct := list(dict.fromkeys(filter(None, names)))):
        raise UserError(f"wikipedia.titles={options.titles} holds no title", "empty")
    return distinct


def _article(title: str, page: dict[str, Any], rules: Rules, splits: Splits, seen: dict[int, str]) -> Article:
    if page["status"] == "missing":
        raise UnusableError("missing: there is no page with this title")
    if page["status"] == "disambiguation":
        raise UnusableError("disambiguation page")
    if page["pageid"] in seen:
        raise UnusableError(f"repeated: the same article as {seen[page['pageid']]}")
    article = rules.article(page["title"], prose(clean(page["text"])), split=splits)
    seen[page["pageid"]] = title
    return article


def _category_titles(client: _Client, options: Wikipedia, problems: Problems) -> list[str]:
    """List titles in a category and its subcategories, each once, nearest first."""
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
                raise RunError(f"wikipedia.category={name} was not fetched: {error}", "network") from error
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


#: Failed requests in a row before only the cache answers.
GIVE_UP = 3


class FetchError(Exception):
    """A request that failed for good; ``down`` if the server or the network is the cause, not the request."""

    def __init__(self, reason: str, *, down: bool = False) -> None:
        super().__init__("".join(c if c.isprintable() else " " for c in reason[:300]))
        self.down = down


#: Characters that no title holds; "|" would ask for two pages.
_NO_TITLE = re.compile(r"[#<>\[\]{}|\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class _Client:
    """Client for pages, category members and random titles, fetched once; FetchErrors are not kept."""

    def __init__(self, options: Wikipedia) -> None:
        import wikipediaapi

        self.options = options
        address = urlsplit(options.api_url or f"https://{options.language}.wikipedia.org")
        cache = Path(options.cache or cache_folder("wikipedia"))
        self._cache = cache / re.sub(r"[^\w.-]+", "_", address.netloc + address.path)
        self.transport = _Transport(options)
        self._failures = 0
        contact = f" ({options.contact})" if options.contact else ""
        client = partial(
            wikipediaapi.Wikipedia, user_agent=f"probers/{probers.__version__}{contact}",
            language=options.language, max_retries=options.retries, retry_wait=options.backoff,
            transport=self.transport, timeout=options.timeout,
        )  # fmt: skip
        self._lists = client(extra_api_params={"maxlag": 5})
        # Text and kind of a page with one request.
        of_page = {"prop": "info|extracts|pageprops", "ppprop": "disambiguation", "explaintext": 1}
        self._pages = client(extra_api_params={"maxlag": 5, **of_page, "exsectionformat": "wiki"})

    def page(self, title: str) -> dict[str, Any]:
        """Find a page: ``status`` "ok", "missing" or "disambiguation", and title, pageid, revision, text."""
        if not title.strip() or _NO_TITLE.search(title):
            return {"status": "missing"}
        return self._cached("pages", title, lambda: self._fetch_page(title))

    def members(self, category: str) -> dict[str, list[str]]:
        """List the titles of the ``pages`` (articles alone) and ``categories`` of a category."""
        return self._cached("categories", category, lambda: self._fetch_members(category))

    def random_titles(self, seed: int, limit: int, problems: Problems) -> Iterator[str]:
        """Yield titles drawn for ``seed``, cached ones first; about 20 times the limit at most."""
        file = self._file("random", f"seed {seed}")
        titles: list[str] = made_once(file, lambda: {"titles": []})["titles"]
        most, fresh = 20 * limit + 100, titles
        try:
            while True:
                yield from fresh[:most]
                if (most := most - len(fresh)) <= 0:
                    return
                drawn = self._request(lambda: self._lists.random(limit=max(10, min(500, limit))))
                fresh = [page.title for page in drawn.values() if page.title not in titles]
                if not fresh:
                    raise FetchError("the wiki draws no further page")
                titles = titles + fresh
                write_text(file, sealed({"titles": titles}))
        except FetchError as error:
            problems.add("random pages", f"not fetched: {error}", failure=True)

    def _cached(self, kind: str, name: str, fetch: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return made_once(self._file(kind, name), lambda: self._request(fetch))

    def _file(self, kind: str, name: str) -> Path:
        slug = re.sub(r"[^A-Za-z0-9]+", "_", name)[:40].strip("_")
        return self._cache / kind / f"{slug}-{digest(name)}.json"

    def _request(self, fetch: Callable[[], Any]) -> Any:
        """Call ``fetch`` and turn every failure into a FetchError."""
        if self._failures >= GIVE_UP:
            raise FetchError(f"not asked for, {GIVE_UP} requests in a row had failed")
        from wikipediaapi import WikipediaException

        before, self._failures = self._failures, 0
        self.transport.failure = ""
        try:
            return fetch()
        except FetchError as error:
            self._failures = before + 1 if error.down else 0
            raise
        except WikipediaException as error:
            self._failures = before + 1
            often = self.options.retries + 1
            tried = f" (tried {often} times)" if often > 1 else ""
            raise FetchError(f"{self.transport.failure or first_line(error)}{tried}", down=True) from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # The library reads its expected fields without checking for them.
            raise FetchError("the answer is incomplete: a part of it is missing") from error

    def _fetch_page(self, title: str) -> dict[str, Any]:
        page = self._pages.page(title)
        if not page.exists():
            return {"status": "missing"}
        status = "disambiguation" if "disambiguation" in getattr(page, "pageprops", {}) else "ok"
        return {
            "status": status, "title": str(page.title), "pageid": int(page.pageid),
            "revision": int(page.lastrevid), "text": str(getattr(page, "extract", "")),
        }  # fmt: skip

    def _fetch_members(self, category: str) -> dict[str, list[str]]:
        import wikipediaapi

        page = self._lists.page(category, ns=wikipediaapi.Namespace.CATEGORY)
        members = self._lists.categorymembers(page)
        spaces = {"pages": wikipediaapi.Namespace.MAIN, "categories": wikipediaapi.Namespace.CATEGORY}
        return {name: [p.title for p in members.values() if p.ns == ns] for name, ns in spaces.items()}


#: MediaWiki's error codes that are temporary; it sends them with status 200.
_BUSY = ("maxlag", "ratelimited", "readonly", "internal_api_error")


class _Transport(httpx.BaseTransport):
    """Paced requests; the library's client sees their temporary failures as those that it repeats.

    It repeats status 429 after the seconds of ``Retry-After``, status 500 and above, timeouts and failed
    connections. ``failure`` is the reason of the last failed request.
    """

    def __init__(self, options: Wikipedia) -> None:
        self.options, self.failure = options, ""
        self._network = httpx.Client()  # uses the proxies that the environment names
        self._next = 0.0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read the whole answer; FetchError where repeating it is useless."""
        if (now := time.monotonic()) < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self.options.rate
        if self.options.api_url:
            request.url = httpx.URL(self.options.api_url).copy_with(query=request.url.query)
            request.headers["Host"] = request.url.netloc.decode()
        try:
            response = self._network.send(request)
        except httpx.TimeoutException:
            self.failure = f"no answer within wikipedia.timeout={self.options.timeout:g} s"
            raise
        except httpx.TransportError as error:
            self.failure = f"the connection failed: {error or type(error).__name__}"
            raise httpx.ConnectError(str(error), request=request) from error
        status, reason = response.status_code, f"HTTP {response.status_code}"
        if status == 200:
            try:
                answer = response.json()
            except ValueError:  # a proxy's page
                answer = None
            if not isinstance(answer, dict):
                reason = "the answer is not a JSON object"
            elif "error" not in answer:
                return response
            else:
                code = str(answer["error"].get("code"))
                reason = f"the API answered {code}"
                if not code.startswith(_BUSY):
                    raise FetchError(f"{reason}: {answer['error'].get('info', 'no reason given')}")
        elif status not in (408, 429) and status < 500:
            raise FetchError(reason, down=status in (401, 403))
        wait = _retry_after(response)
        if wait is not None and wait > self.options.max_wait:
            limit = f"wikipedia.max_wait is {self.options.max_wait:g}"
            raise FetchError(f"{reason}, to be repeated after {wait:.0f} s; {limit}", down=True)
        self.failure = reason
        headers = {} if wait is None else {"Retry-After": f"{wait:.0f}"}
        return httpx.Response(429, headers=headers, request=response.request)

    def close(self) -> None:
        self._network.close()


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds until the time that a server names, or None."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    with suppress(TypeError, ValueError, OverflowError):
        when = parsedate_to_datetime(value)
        when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
        return max(0.0, when.timestamp() - time.time())
    return None
