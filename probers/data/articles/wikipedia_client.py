"""What is asked of a Wikipedia, by the wikipedia-api package and through a cache."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import probers

from ...checksums import seal, unsealed
from ...files import digest, write_bytes
from ...types import UserError, first_line
from .wikipedia_transport import FetchError, PoliteTransport

if TYPE_CHECKING:
    import wikipediaapi

SCHEMA = 1


@dataclass(frozen=True)
class WikipediaOptions:
    """What to ask a Wikipedia for, and how; exactly one of titles, category and random.

    Attributes:
        titles: a list of titles, or the path of a text file with one per line.
        category: a category's name, with or without "Category:".
        depth: how many levels of subcategories are followed; 0 takes the category's own pages.
        random: pages drawn by Wikipedia; needs a limit. A draw is kept under its seed.
        language: the Wikipedia's code, as in en.wikipedia.org.
        contact: an e-mail address or page for the user agent, which Wikimedia asks for.
        cache: folder of what was fetched; with it the same request needs no network again.
        rate: requests per second at most.
        retries: further tries of a failed request, ``backoff`` seconds after the first
            failure and twice as long after each further one, or as long as the server says.
        max_wait: a server that asks to wait longer, in seconds, is not asked again.
        timeout: seconds for a whole exchange, to its last byte, after which a try has failed.
        api_url: address of another MediaWiki's api.php; None is the Wikipedia of ``language``.
    """

    titles: Sequence[str] | str | None = None
    category: str | None = None
    depth: int = 0
    random: bool = False
    language: str = "en"
    contact: str | None = None
    cache: str = "runs/cache/wikipedia"
    rate: float = 2.0
    retries: int = 5
    backoff: float = 1.0
    max_wait: float = 300.0
    timeout: float = 20.0
    api_url: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> WikipediaOptions:
        """The options of a mapping.

        Raises:
            UserError: an unknown option or a value that makes no sense.
        """
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(options or {}) - set(known))
        if unknown:
            raise UserError(f"wikipedia.{unknown[0]} is unknown: choose among {', '.join(known)}")
        return cls(**(options or {}))

    def __post_init__(self) -> None:
        asked = [name for name in ("titles", "category", "random") if getattr(self, name)]
        if len(asked) != 1:
            raise UserError(
                "articles=wikipedia needs exactly one of wikipedia.titles, wikipedia.category and "
                f"wikipedia.random=true; {' and '.join(asked) or 'none'} given"
            )
        if not isinstance(self.language, str) or not self.language.replace("-", "").isalnum():
            raise UserError(f"wikipedia.language={self.language} is not a code such as en or de")
        for name in ("depth", "retries", "backoff", "max_wait", "rate", "timeout"):
            value, strict = getattr(self, name), name in ("rate", "timeout")
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not (value > 0 or (value == 0 and not strict)):
                least = "above 0" if strict else "of at least 0"
                raise UserError(f"wikipedia.{name}={value} must be a number {least}")
        if self.api_url is not None and urlsplit(self.api_url).scheme not in ("http", "https"):
            raise UserError(f"wikipedia.api_url={self.api_url} must begin with https:// or http://")
        if self.contact is not None and (not self.contact.isascii() or not self.contact.isprintable()):
            raise UserError(
                f"wikipedia.contact={self.contact!r} must be plain ASCII: an e-mail address or a URL"
            )


#: Fields of the records of a kind, and of which type; of pages by their status.
_PAGE = {"status": str, "title": str, "pageid": int, "revision": int, "text": str}
_FIELDS: dict[str, dict[str, type]] = {
    "categories": {"pages": list, "categories": list}, "random": {"titles": list},
    "missing": {"status": str}, "ok": _PAGE, "disambiguation": _PAGE,
}  # fmt: skip


def _check_record(kind: str, name: str, record: dict[str, Any]) -> None:
    """Refuse what :meth:`Client._keep` did not write; older versions wrote no checksum.

    Raises:
        ValueError: says what is wrong.
    """
    about = {"schema": SCHEMA, "name": name}
    fields = _FIELDS.get(str(record.get("status")) if kind == "pages" else kind, {})
    if record.keys() != {*about, *fields} or any(record[key] != value for key, value in about.items()):
        raise ValueError("does not hold what was fetched")
    for field, expected in fields.items():
        value = record[field]
        texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if type(value) is not expected or (expected is list and not texts):
            raise ValueError(f"does not hold what was fetched ({field} is of another type)")


#: Requests in a row that no further try brought through, after which the network is left alone.
GIVE_UP = 3
#: Characters no title holds; "|" would even ask for two pages.
_NO_TITLE = re.compile(r"[#<>\[\]{}|\x00-\x1f\x7f-\x9f\ud800-\udfff]")
#: What is raised by reading an answer that is not as it should be.
_MISREAD = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
MOST_TITLE = 500  # bytes; MediaWiki's own limit is 255 without the name of a category's space


def _is_title(value: Any) -> bool:
    named = isinstance(value, str) and value.strip() and not _NO_TITLE.search(value)
    return bool(named) and len(value.encode()) <= MOST_TITLE


def _right(name: str, value: Any, right: bool) -> Any:
    """A value of an answer.

    Raises:
        ValueError: it is not right.
    """
    if not right:
        raise ValueError(f"{name} is {reprlib.repr(value)}")
    return value


def _title(value: Any) -> str:
    return str(_right("title", value, _is_title(value)))


def _number(name: str, value: Any) -> int:
    right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return int(_right(name, value, right))


class Client:
    """Pages, category members and random titles; each is fetched once and then read from disk.

    A failure is not kept: the next run asks again. After :data:`GIVE_UP` in a row only the
    cache answers. The library is imported when something is not in the cache.
    """

    def __init__(self, options: WikipediaOptions, notice: Callable[[str], None] = lambda text: None) -> None:
        self.options = options
        address = urlsplit(options.api_url or f"https://{options.language}.wikipedia.org")
        self._cache = Path(options.cache) / re.sub(r"[^\w.-]+", "_", address.netloc + address.path)
        self._transport = PoliteTransport(
            notice,
            rate=options.rate,
            retries=options.retries,
            backoff=options.backoff,
            max_wait=options.max_wait,
            timeout=options.timeout,
            api_url=options.api_url,
        )
        self._wikis: dict[bool, wikipediaapi.Wikipedia] = {}
        self._failures = 0

    def page(self, title: str) -> dict[str, Any]:
        """A page: ``status`` "ok", "missing" or "disambiguation", and title, pageid, revision, text.

        Raises:
            FetchError: it is neither in the cache nor could it be fetched.
        """
        if not _is_title(title):
            return {"status": "missing"}
        return self._kept("pages", title, lambda: self._fetch_page(title))

    def members(self, category: str) -> dict[str, list[str]]:
        """Titles of the ``pages`` (articles alone) and ``categories`` of a category.

        Raises:
            FetchError: as :meth:`page`.
        """
        return self._kept("categories", category, lambda: self._fetch_members(category))

    def random_titles(self, seed: int, *, batch: int) -> Iterator[str]:
        """The titles of the draw that belongs to ``seed``, which grows as they are asked for.

        Raises:
            FetchError: as :meth:`page`, or the Wikipedia has no further page.
        """
        name = f"seed {seed}"
        titles: list[str] = (self._read("random", name) or {"titles": []})["titles"]
        yield from titles
        while True:
            drawn = self._asked(lambda: self._fetch_random(batch))
            known = set(titles)
            fresh = [t for t in drawn if t not in known]
            if not fresh:
                raise FetchError("the wiki draws no further page")
            titles = titles + fresh
            self._keep("random", name, {"titles": titles})
            yield from fresh

    def close(self) -> None:
        self._transport.close()

    def _kept(self, kind: str, name: str, fetch: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        record = self._read(kind, name)
        if record is None:
            record = self._asked(fetch)
            self._keep(kind, name, record)
        return record

    def _read(self, kind: str, name: str) -> dict[str, Any] | None:
        """A record of the cache; one that is damaged is named and counts as absent."""
        file = self._file(kind, name)
        try:
            record = unsealed(file)
            _check_record(kind, name, record)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            print(f"{file} {first_line(error)}: it is fetched again", flush=True)
            return None
        return record

    def _keep(self, kind: str, name: str, record: dict[str, Any]) -> None:
        blob = json.dumps(seal({"schema": SCHEMA, "name": name, **record})).encode()
        then = "free some space or give another folder as wikipedia.cache"
        write_bytes(self._file(kind, name), blob, then)

    def _file(self, kind: str, name: str) -> Path:
        """The file of a record: readable as far as the name is ASCII, unique by its hash."""
        slug = re.sub(r"[^A-Za-z0-9]+", "_", name)[:40].strip("_")
        return self._cache / kind / f"{slug}-{digest(name)}.json"

    def _asked(self, fetch: Callable[[], Any]) -> Any:
        """What ``fetch`` returns, every way it can fail as a FetchError."""
        if self._failures >= GIVE_UP:
            raise FetchError(f"not asked for, {GIVE_UP} requests in a row had failed")
        from wikipediaapi import WikipediaException

        before, self._failures = self._failures, 0
        self._transport.begin()
        try:
            return fetch()
        except FetchError as error:
            self._failures = before + 1 if error.down else 0
            raise
        except WikipediaException as error:
            raise FetchError(f"the answer is not understood ({first_line(error)})") from error
        except _MISREAD as error:
            # The library reads the fields it expects without asking whether they are there.
            raise FetchError(
                "the answer is not understood: a part of it is missing or of another form"
            ) from error

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
                transport=self._transport,
                timeout=self.options.timeout,
            )
        return self._wikis[lists]

    def _fetch_page(self, title: str) -> dict[str, Any]:
        page = self._wiki(lists=False).page(title)
        if not page.exists():
            return {"status": "missing"}
        props, text = getattr(page, "pageprops", {}), getattr(page, "extract", "")
        props = _right("pageprops", props, isinstance(props, dict))
        return {
            "status": "disambiguation" if "disambiguation" in props else "ok",
            "title": _title(page.title),
            "pageid": _number("pageid", page.pageid),
            "revision": _number("revision", page.lastrevid),
            "text": _right("extract", text, isinstance(text, str)),
        }

    def _fetch_members(self, category: str) -> dict[str, list[str]]:
        import wikipediaapi

        wiki = self._wiki(lists=True)
        found = wiki.categorymembers(wiki.page(category, ns=wikipediaapi.Namespace.CATEGORY))
        spaces = {"pages": wikipediaapi.Namespace.MAIN, "categories": wikipediaapi.Namespace.CATEGORY}
        return {name: [_title(p.title) for p in found.values() if p.ns == ns] for name, ns in spaces.items()}

    def _fetch_random(self, batch: int) -> list[str]:
        drawn = self._wiki(lists=True).random(limit=max(10, min(500, batch)))
        return [_title(page.title) for page in drawn.values()]
