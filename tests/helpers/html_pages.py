"""Pages of HTML as tests read them: tags, texts, and what a policy says of a style."""

import base64
import hashlib
from html.parser import HTMLParser
from typing import Any

Tag = tuple[str, dict[str, Any]]


class Page(HTMLParser):
    """Tags and texts of a page, with the texts of chosen elements; fails on tags closed out of order."""

    VOID = frozenset(("meta", "br", "link", "img", "hr", "input"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[Tag] = []
        self.open: list[Tag] = []
        self.texts: list[tuple[list[Tag], str]] = []
        self.feed(page)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(self.tags[-1])

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop()[0] == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.texts.append((list(self.open), data))

    @property
    def text(self) -> str:
        return "".join(data for _, data in self.texts)

    def all(self, tag: str) -> list[dict[str, Any]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def of_class(self, name: str) -> list[dict[str, Any]]:
        return [attrs for _, attrs in self.tags if name in (attrs.get("class") or "").split()]

    def within(self, tag: str, name: str = "") -> list[str]:
        """Texts of the elements of a tag, and class if given, one string per element."""
        texts: dict[int, str] = {}
        for path, data in self.texts:
            for element in path:
                if element[0] == tag and name in ["", *(element[1].get("class") or "").split()]:
                    texts[id(element[1])] = texts.get(id(element[1]), "") + data
        return list(texts.values())

    @property
    def policy(self) -> str:
        return next(attrs["content"] for attrs in self.all("meta") if "http-equiv" in attrs)


def digest(inline: str) -> str:
    """What a policy calls a style or script within the page."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}"
