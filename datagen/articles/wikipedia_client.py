"""What is asked of a Wikipedia, through the wikipedia-api package, politely and through a cache."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

import probers
from probers.data.http import AgainError, FetchError, PatientTransport, retry_after
from probers.files import digest, write_bytes

if TYPE_CHECKING:
    import wikipediaapi

    from .wikipedia import WikipediaOptions

SCHEMA = 1


class Cache:
    """Records by kind and name; each is written whole or not at all.

    A file that cannot be read as what was written counts as absent and is fetched again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, kind: str, name: str) -> Path:
        """The file of a record: readable as far as the name is ASCII, unique by its hash."""
        slug = re.sub(r"[^A-Za-z0-9]+", "_", name)[:40].strip("_")
        return self.folder / kind / f"{slug}-{digest(name)}.json"

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            record = json.loads(self.path(kind, name).read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or (record.get("schema"), record.get("name")) != (SCHEMA, name):
            return None
        return record

    def put(self, kind: str, name: str, record: dict[str, Any]) -> None:
        """Keep a record.

        Raises:
            RunError: the folder cannot be written to.
        """
        path = self.path(kind, name)
        blob = json.dumps({"schema": SCHEMA, "name": name, **record}).encode()
        write_bytes(path, blob, "free some space or give another folder as wikipedia.cache")


__all__ = ["BUSY", "FetchError", "PoliteTransport"]

#: MediaWiki's error codes after which the same request may succeed.
BUSY = ("maxlag", "ratelimited", "readonly", "internal_api_error")


class PoliteTransport(PatientTransport):
    """Paces and repeats the requests of another transport.

    Args:
        api_url: where requests go instead of the library's own address; None keeps it.
        rate: requests per second at most.
        retries: further tries after the first.
        backoff: seconds before the second try, doubled before each further one.
        max_wait: longest single wait in seconds; a server that asks for more is given up.
        inner: what sends; the network, through the proxy of the environment, by default.
        sleep: called with seconds.
        notice: called with one clause when a try failed and another will follow.
    """

    def __init__(
        self,
        *,
        api_url: str | None = None,
        rate: float = 2.0,
        retries: int = 5,
        backoff: float = 1.0,
        max_wait: float = 300.0,
        inner: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(
            retries=retries,
            backoff=backoff,
            max_wait=max_wait,
            option="wikipedia.max_wait",
            inner=inner,
            sleep=sleep,
            notice=notice,
        )
        self.api_url = httpx.URL(api_url) if api_url else None
        self.gap = 1 / rate
        self._next = 0.0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return super().handle_request(self._redirected(request))

    def before(self, request: httpx.Request) -> None:
        now = time.monotonic()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(now, self._next) + self.gap

    def check(self, response: httpx.Response) -> None:
        super().check(response)
        status = response.status_code
        if status != 200:
            raise FetchError(f"HTTP {status}", down=status in (401, 403))
        _check_answer(response)

    def _redirected(self, request: httpx.Request) -> httpx.Request:
        if self.api_url is None:
            return request
        headers = httpx.Headers([(k, v) for k, v in request.headers.multi_items() if k != "host"])
        url = self.api_url.copy_with(query=request.url.query)
        return httpx.Request(request.method, url, headers=headers, extensions=request.extensions)


def _check_answer(response: httpx.Response) -> None:
    """MediaWiki reports its own failures with status 200."""
    try:
        answer: Any = json.loads(response.content)
    except ValueError as error:  # a page of a proxy or a half-written answer
        raise AgainError("the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise AgainError("the answer is not a JSON object")
    if "error" in answer:
        error_fields = answer["error"] if isinstance(answer["error"], dict) else {}
        code = str(error_fields.get("code", "unknown"))
        if code.startswith(BUSY):
            raise AgainError(f"the API answered {code}", retry_after(response))
        raise FetchError(f"the API answered {code}: {error_fields.get('info', 'no reason given')}")


#: Requests in a row that no further try brought through, after which the network is left alone.
GIVE_UP = 3
#: Characters no title holds; "|" would even ask for two pages.
_NO_TITLE = re.compile(r"[#<>\[\]{}|\x00-\x1f\x7f\ud800-\udfff]")


class Client:
    """Pages, category members and random titles; each is fetched once and then read from disk.

    A failure is not kept: the next run asks again. After :data:`GIVE_UP` in a row only the
    cache answers. The library is imported when something is not in the cache.
    """

    def __init__(self, options: WikipediaOptions, notice: Callable[[str], None] = lambda text: None) -> None:
        self.options = options
        address = urlsplit(options.api_url or f"https://{options.language}.wikipedia.org")
        self.cache = Cache(Path(options.cache) / re.sub(r"[^\w.-]+", "_", address.netloc + address.path))
        self.transport = PoliteTransport(
            api_url=options.api_url,
            rate=options.rate,
            retries=options.retries,
            backoff=options.backoff,
            max_wait=options.max_wait,
            notice=notice,
        )
        self._wikis: dict[bool, wikipediaapi.Wikipedia] = {}
        self._draws: dict[int, list[str]] = {}
        self._failures = 0

    def page(self, title: str) -> dict[str, Any]:
        """A page: ``status`` "ok", "missing" or "disambiguation", and title, pageid, revision, text.

        Raises:
            FetchError: it is neither in the cache nor could it be fetched.
        """
        if _NO_TITLE.search(title):
            return {"status": "missing"}
        record = self.cache.get("pages", title)
        if record is None or "status" not in record:
            record = self._asked(lambda: self._fetch_page(title))
            self.cache.put("pages", title, record)
        return record

    def members(self, category: str) -> dict[str, list[str]]:
        """Titles of the ``pages`` (articles alone) and ``categories`` of a category.

        Raises:
            FetchError: as :meth:`page`.
        """
        record = self.cache.get("categories", category)
        if record is None or not {"pages", "categories"} <= set(record):
            record = self._asked(lambda: self._fetch_members(category))
            self.cache.put("categories", category, record)
        return record

    def random_title(self, seed: int, index: int, *, batch: int) -> str:
        """The title at ``index`` of the draw that belongs to ``seed``, which grows as needed.

        Raises:
            FetchError: as :meth:`page`, or the Wikipedia has no further page.
        """
        name = f"seed {seed}"
        if seed not in self._draws:
            self._draws[seed] = list((self.cache.get("random", name) or {}).get("titles", []))
        titles = self._draws[seed]
        if index >= len(titles):
            drawn = self._asked(lambda: self._fetch_random(batch))
            fresh = [t for t in drawn if t not in set(titles)]
            if not fresh:
                raise FetchError("the wiki draws no further page")
            titles += fresh
            self.cache.put("random", name, {"titles": titles})
        return titles[index]

    def close(self) -> None:
        self.transport.close()

    def _asked(self, fetch: Callable[[], Any]) -> Any:
        """What ``fetch`` returns, every way it can fail as a FetchError."""
        if self._failures >= GIVE_UP:
            raise FetchError(f"not asked for, {GIVE_UP} requests in a row had failed")
        from wikipediaapi import WikipediaException

        try:
            answer = fetch()
        except FetchError as error:
            self._failures = self._failures + 1 if error.down else 0
            raise
        except (WikipediaException, LookupError, TypeError, ValueError, AttributeError) as error:
            # The library reads the fields it expects without asking whether they are there.
            self._failures = 0
            raise FetchError(f"the answer is not understood ({type(error).__name__}: {error})") from error
        self._failures = 0
        return answer

    def _wiki(self, *, lists: bool) -> wikipediaapi.Wikipedia:
        """The library's client: for pages it is told to get text and kind with one request."""
        if lists not in self._wikis:
            import wikipediaapi

            contact = f" ({self.options.contact})" if self.options.contact else ""
            extra: dict[str, Any] = {"maxlag": 5}
            if not lists:
                extra |= {
                    "prop": "info|extracts|pageprops",
                    "ppprop": "disambiguation",
                    "explaintext": 1,
                    "exsectionformat": "wiki",
                }
            self._wikis[lists] = wikipediaapi.Wikipedia(
                user_agent=f"probers/{probers.__version__}{contact}",
                language=self.options.language,
                extra_api_params=extra,
                max_retries=0,  # the transport's are used
                transport=self.transport,
                timeout=self.options.timeout,
            )
        return self._wikis[lists]

    def _fetch_page(self, title: str) -> dict[str, Any]:
        page = self._wiki(lists=False).page(title)
        if not page.exists():
            return {"status": "missing"}
        kind = "disambiguation" if "disambiguation" in getattr(page, "pageprops", {}) else "ok"
        return {
            "status": kind,
            "title": page.title,
            "pageid": int(page.pageid),
            "revision": page.lastrevid,
            "text": str(getattr(page, "extract", "")),
        }

    def _fetch_members(self, category: str) -> dict[str, list[str]]:
        import wikipediaapi

        wiki = self._wiki(lists=True)
        found = wiki.categorymembers(wiki.page(category, ns=wikipediaapi.Namespace.CATEGORY))
        spaces = {"pages": wikipediaapi.Namespace.MAIN, "categories": wikipediaapi.Namespace.CATEGORY}
        return {name: [p.title for p in found.values() if p.ns == ns] for name, ns in spaces.items()}

    def _fetch_random(self, batch: int) -> list[str]:
        return [page.title for page in self._wiki(lists=True).random(limit=max(10, min(500, batch))).values()]
