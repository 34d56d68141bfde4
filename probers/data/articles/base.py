"""Common parts of article sources: cleaning, problems, rules and the source itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ...options import Limits, Name, Natural, NotNegative, Positive
from ...types import Article, RunError, UserError
from ..records import LeftOut, UnusableError

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\ud800-\udfff]+")
_BREAK = re.compile("\r\n?|[\x85\u2028\u2029]")
# Full stops that need no space after them: those of Chinese, Japanese, Arabic, Urdu and Hindi.
_OTHER_END = re.compile("[。！？؟۔।]+[」』”’）)]*")
_ENDS = re.compile(r"""[.!?…:;。！？؟۔।]["'”’»)\]」』]*$""")
_HEADING = re.compile(r"^\s*(={2,6})\s*(.*?)\s*\1\s*$")
#: Least length of a line that is prose even without a full stop at its end.
PROSE = 80

#: Sections without prose, in the larger Wikipedias.
APPENDICES = frozenset(
    """references|see also|external links|further reading|notes|footnotes|bibliography|sources|citations
    |works cited|notes and references|references and notes|notes and citations|explanatory notes|gallery
    |einzelnachweise|weblinks|siehe auch|literatur|anmerkungen|quellen|belege
    |voir aussi|notes et références|références|liens externes|bibliographie|articles connexes|annexes
    |referencias|véase también|enlaces externos|bibliografía|notas|note|voci correlate|altri progetti
    |collegamenti esterni|referências|ver também|ligações externas|bibliografia|zie ook|externe links
    |bronnen, noten en/of referenties|примечания|см. также|ссылки|литература
    |المراجع|مراجع|انظر أيضا|وصلات خارجية|参考文献|参见|外部链接|注释|脚注|関連項目|外部リンク""".replace(
        "\n    ", ""
    ).split("|")
)


@dataclass(frozen=True, kw_only=True)
class Wikipedia:
    """A live Wikipedia, cached on disk (articles=wikipedia)."""

    titles: list[Name] | Name | None = None
    """list of titles, or a file with one a line"""
    category: Name | None = None
    """all pages of a category"""
    depth: Natural = 0
    """number of levels of subcategories"""
    random: bool = False
    """true draws limit pages at random"""
    language: Annotated[str, Limits("a code such as en or de", pattern=r"^[\w-]+$")] = "en"
    """language of the Wikipedia"""
    contact: (
        Annotated[str, Limits("an e-mail address or a URL in plain ASCII", pattern="^[ -~]+$")] | None
    ) = None
    """your e-mail address or page for the user agent, which Wikipedia asks for"""
    cache: Name | None = None
    """folder for fetched pages and lists; null is in the user's cache folder"""
    rate: Positive = 2
    """largest number of requests per second"""
    retries: Natural = 5
    """number of further tries after a failed request"""
    backoff: NotNegative = 1
    """seconds before the first retry, doubled for each further one"""
    max_wait: NotNegative = 300
    """longest wait in seconds that a server may ask for"""
    timeout: Positive = 20
    """seconds per request"""
    api_url: Annotated[str, Limits("a URL of http:// or https://", pattern="^https?://[!-~]+$")] | None = None
    """address of another MediaWiki"""

    def check(self) -> None:
        """Refuse several or no choices of pages (UserError)."""
        given = [name for name in ("titles", "category", "random") if getattr(self, name)]
        if len(given) != 1:
            needed = "exactly one of wikipedia.titles, wikipedia.category and wikipedia.random=true"
            message = f"articles=wikipedia needs {needed}; {' and '.join(given) or 'none'} given"
            raise UserError(message, "conflict" if given else "missing-value")


def clean(text: str) -> str:
    """Drop control characters and lone surrogates, and make every line break a line feed."""
    return _CONTROL.sub("", _BREAK.sub("\n", text).replace("\t", " "))


def prose(text: str) -> str:
    """Keep the prose lines of an encyclopedia page.

    It drops headings, appendices, formulas and short lines without a sentence's end (list items, captions).
    If no heading is marked with ``==``, as in dumps, a line equal to an appendix's heading ends the page.
    """
    lines: list[str] = []
    marked = re.search(r"^\s*==.*==\s*$", text, re.MULTILINE) is not None
    skipping = 0  # level of the appendix being skipped, 0 for none
    for line in text.split("\n"):
        if heading := _HEADING.match(line):
            level = len(heading.group(1))
            if not skipping or level <= skipping:
                skipping = level if heading.group(2).casefold() in APPENDICES else 0
            continue
        if skipping or "\\displaystyle" in line:
            continue
        bare = line.strip()
        if not marked and bare.casefold() in APPENDICES:
            break
        if len(bare) >= PROSE or _ENDS.search(bare[-12:]):
            lines.append(bare)
    return "\n".join(lines)


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of clean text, in scripts without spaces too."""
    from ...words.text import split_sentences

    for start, end in split_sentences(text):
        for border in (*(match.end() for match in _OTHER_END.finditer(text, start, end)), end):
            if sentence := text[start:border].strip():
                yield sentence
            start = border


@dataclass(frozen=True)
class Rules:
    """Requirements of a usable article: least number of sentences, largest number of characters in them."""

    min_sentences: int = 2
    max_chars: int = 100_000

    def article(
        self,
        title: str,
        content: str | Sequence[str],
        *,
        id: str | None = None,
        split: Callable[[str], str] | None = None,
    ) -> Article:
        """Make an article of clean sentences; ``split`` deals its title (UnusableError if it is useless)."""
        title = " ".join(clean(title).split())
        if not title:
            raise UnusableError("no title")
        # Text far beyond the limit is not even split.
        whole = sentences_of(clean(content[: 2 * self.max_chars])) if isinstance(content, str) else ()
        sentences: list[str] = []
        size, sentence = 0, ""
        for sentence in whole or (" ".join(clean(s).split()) for s in content):
            size += len(sentence) + 1
            if size > self.max_chars + 1:
                break
            if sentence:
                sentences.append(sentence)
        if not sentences:
            long = f"too long: its first sentence has more than {self.max_chars} characters"
            raise UnusableError(long if sentence else "empty")
        if len(sentences) < self.min_sentences:
            raise UnusableError(f"too short: {len(sentences)} of at least {self.min_sentences} sentences")
        return Article(title if id is None else id, title, tuple(sentences), split(title) if split else "")


@dataclass
class Problems(LeftOut):
    """Articles that could not be used; ``failed`` counts those that the network did not deliver."""

    noun: str = "article"
    kinds: int | None = 5
    failed: int = 0

    def add(self, title: str, reason: str, *, failure: bool = False) -> None:
        super().add(clean(title), clean(reason))  # as one printable line each
        self.failed += failure

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.listed)

    def nothing_usable(self, spec: str) -> UserError | RunError:
        """Make the error for a source that delivered no article at all."""
        why = self.summary() or "the source is empty"
        first = f" (first: {self.listed[0][0]}: {self.listed[0][1]})" if self.listed else ""
        message = f"articles={spec} holds no usable article: {why}{first}"
        return RunError(message, "network") if self.failed else UserError(message, "empty")


@dataclass
class ArticleSource:
    """A source of articles, made one at a time while it is iterated, once.

    ``problems`` is complete at the end; ``total`` is the largest expected number of articles, or None.
    """

    spec: str
    articles: Iterator[Article]
    problems: Problems
    total: int | None

    def __iter__(self) -> Iterator[Article]:
        """Yield the articles; UserError or RunError at the end if there was none."""
        empty = True
        for article in self.articles:
            empty = False
            yield article
        if empty:
            raise self.problems.nothing_usable(self.spec)
