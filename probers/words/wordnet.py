"""Relations between names in WordNet, by nltk: shared synsets, and relations that keep two apart."""

from __future__ import annotations

import io
import logging
import warnings
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import IO, Any, Literal

from ..types import UserError
from .language import english, table
from .numbers import Relation
from .spelling import GIVEN, normalise

log = logging.getLogger(__name__)

#: Folder of Debian's wordnet-base; nltk's own folders are searched first.
_DEBIAN = "/usr/share/wordnet"
#: The command that brings the files.
HOW_TO_GET = "python -m nltk.downloader wordnet"
_NEEDED = ("data.noun", "index.noun")
_RELATIONS = {
    "hypernym": "hypernyms", "instance": "instance_hypernyms", "part": "part_holonyms",
    "member": "member_holonyms",
}  # fmt: skip


def find_wordnet() -> str | None:
    """Find the folder or archive of WordNet's files below nltk's data path (or Debian's); None if absent."""
    import nltk

    names = ("wordnet", "wordnet31", "wordnet.zip", "wordnet31.zip")
    places = [Path(p) / "corpora" / name for p in nltk.data.path for name in names]
    return next((str(p) for p in (*places, Path(_DEBIAN)) if has_wordnet(str(p))), None)


def has_wordnet(folder: str) -> bool:
    """Tell whether a folder, or an archive as nltk downloads it, holds WordNet's files."""
    path = Path(folder)
    if path.suffix == ".zip":
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return {f"{path.stem}/{name}" for name in _NEEDED} <= set(archive.namelist())
    return all((path / name).is_file() for name in _NEEDED)


def same_in_wordnet(a: str, b: str, folder: str) -> tuple[Relation | Literal["whole"], str] | None:
    """Return the relation of two names in WordNet, with the synsets; None without one.

    One synset as the first sense of both is "equivalent", where a capital means an individual: "Java" is
    no coffee, and "China" is first another state than "Taiwan". ``b`` somewhere above ``a`` as a part is
    "whole", also where one is the adjective of a place ("Alberta" / "Canadian") or of the other; any other
    synset of one name directly above one of the other's (a kind, an instance, a part, a member) is
    "different". UserError for damaged files.
    """
    try:
        return _relation(a, b, folder)
    except (AttributeError, LookupError, ValueError) as error:  # nltk does not check what it reads
        reason = f"wordnet={folder}: its files are damaged: get them again ({HOW_TO_GET})"
        raise UserError(reason, "bad-file") from error


def _relation(a: str, b: str, folder: str) -> tuple[Relation | Literal["whole"], str] | None:
    first, second = _synsets(a, folder), _synsets(b, folder)
    meant = _first_sense(a, first)
    if meant and meant == _first_sense(b, second):
        return "equivalent", f"synset {meant}"
    for place, names in ((_place_of(a, folder), second), (_place_of(b, folder), first)):
        if same := {s.name() for s in place} & {s.name() for s in names}:
            return "whole", f"an adjective of {min(same)}"
    wholes = {s.name() for s in _place_of(b, folder) or second}
    for synset in _place_of(a, folder) or first:
        for above in synset.closure(lambda s: s.part_holonyms()):
            if above.name() in wholes:
                return "whole", f"{synset.name()} is part of {above.name()}"
    for lower, upper in ((first, second), (second, first)):
        above = {s.name() for s in upper}
        for synset, (label, method) in product(lower, _RELATIONS.items()):
            if related := {s.name() for s in getattr(synset, method)()} & above:
                return "different", f"{synset.name()} is {label} of {min(related)}"
    return None


def _first_sense(name: str, synsets: Sequence[Any]) -> str:
    """Return the first synset of a name; with a capital, of individuals if there are any."""
    if normalise(name) in english("merged"):
        return ""
    kind = [s for s in synsets if bool(s.instance_hypernyms()) == name[:1].isupper()] or synsets
    return kind[0].name() if kind else ""


@lru_cache(maxsize=4096)
def _synsets(name: str, folder: str) -> tuple[Any, ...]:
    lemma = "_".join(name.split()).strip("_.,").lower()
    reader = open_wordnet(folder)
    synsets = reader.synsets(lemma, pos="n")
    if not synsets:
        lemma = "_".join(normalise(name).split())
        synsets = reader.synsets(lemma, pos="n") if lemma else []
    if lemma.removesuffix("s") in GIVEN:  # nltk takes "Roberts" for the plural of "Robert"
        synsets = [s for s in synsets if lemma in (w.lower() for w in s.lemma_names())]
    return tuple(synsets)


@lru_cache(maxsize=4096)
def _place_of(name: str, folder: str) -> tuple[Any, ...]:
    """List the nouns that an adjective's first sense pertains to, and the first sense of each as a word.

    "Canadian" pertains to Canada; "British" to the island, and England is a part of the state.
    """
    lemma = "_".join(name.split()).strip("_.,").lower()
    reader = open_wordnet(folder)
    first = [s for s in reader.synsets(lemma, pos="a")[:1] if s is not None]  # None: no file of adjectives
    nouns = [n for s in first for word in s.lemmas() for n in word.pertainyms()]
    return tuple(s for n in nouns for s in (n.synset(), *reader.synsets(n.name(), pos="n")[:1]))


def _open(folder: str, file: str) -> IO[str]:
    """Open one of WordNet's files; empty where it is missing and nouns can be read without it.

    nltk's own opening refuses folders that a group may write to.
    """
    path = Path(folder)
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return io.TextIOWrapper(io.BytesIO(archive.read(f"{path.stem}/{file}")), encoding="utf-8")
        return (path / file).open(encoding="utf-8")
    except (FileNotFoundError, KeyError):
        if file == "lexnames":
            names = enumerate(table("en")["lexnames"].split())
            return io.StringIO("".join(f"{i:02d}\t{name}\t0\n" for i, name in names))
        if file in _NEEDED:
            raise
        return io.StringIO()


@lru_cache(maxsize=2)
def open_wordnet(folder: str) -> Any:
    """Open nltk's reader of the files in a folder or archive."""
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.data import PathPointer

    class Root(PathPointer):  # type: ignore[misc]
        """Stand-in for the folder, whose files the reader opens itself."""

        def open(self, encoding: str | None = None) -> Any:
            raise NotImplementedError

        file_size = join = open

    class Reader(WordNetCorpusReader):  # type: ignore[misc]
        """nltk's reader on any folder or archive."""

        def open(self, file: str) -> Any:
            return _open(folder, file)

        def map_wn(self, version: str = "wordnet") -> None:
            """Map nothing between versions: only English is read."""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Reader(Root(), None)


@lru_cache(maxsize=1)
def say_absent() -> None:
    """Say once per process that names are compared without WordNet."""
    reason = "WordNet's files were not found below nltk's data path: names are compared without synonyms"
    log.warning("%s (%s)", reason, HOW_TO_GET)
