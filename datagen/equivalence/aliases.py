"""Other names for the same thing: a small table of well-known ones, and the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from probers.types import UserError

from .names import words

#: Names of one thing no rule of spelling can join.
COMMON: tuple[tuple[str, ...], ...] = (
    ("United States", "United States of America", "US", "U.S.", "USA", "U.S.A."),
    ("United Kingdom", "UK", "U.K.", "Great Britain", "Britain"),
    ("Soviet Union", "USSR", "Union of Soviet Socialist Republics"),
    ("Netherlands", "Holland"),
    ("Myanmar", "Burma"),
    ("Sri Lanka", "Ceylon"),
    ("Thailand", "Siam"),
    ("Iran", "Persia"),
    ("Czech Republic", "Czechia"),
    ("Ivory Coast", "Côte d'Ivoire"),
    ("Turkey", "Türkiye"),
    ("Eswatini", "Swaziland"),
    ("Cape Verde", "Cabo Verde"),
    ("East Timor", "Timor-Leste"),
    ("North Macedonia", "Republic of Macedonia"),
    ("China", "People's Republic of China", "PRC"),
    ("Taiwan", "Republic of China"),
    ("South Korea", "Republic of Korea"),
    ("North Korea", "Democratic People's Republic of Korea", "DPRK"),
    ("East Germany", "German Democratic Republic", "GDR"),
    ("West Germany", "Federal Republic of Germany"),
    ("France", "French Republic"),
    ("Mumbai", "Bombay"),
    ("Kolkata", "Calcutta"),
    ("Chennai", "Madras"),
    ("Beijing", "Peking"),
    ("Guangzhou", "Canton"),
    ("Istanbul", "Constantinople"),
    ("Kyiv", "Kiev"),
    ("Ho Chi Minh City", "Saigon"),
    ("Saint Petersburg", "Leningrad", "Petrograd"),
    ("Volgograd", "Stalingrad"),
    ("Oslo", "Christiania"),
    ("Tokyo", "Edo"),
    ("Florence", "Firenze"),
    ("Venice", "Venezia"),
    ("Naples", "Napoli"),
    ("Turin", "Torino"),
    ("Milan", "Milano"),
    ("Rome", "Roma"),
    ("Munich", "München"),
    ("Cologne", "Köln"),
    ("Nuremberg", "Nürnberg"),
    ("Vienna", "Wien"),
    ("Prague", "Praha"),
    ("Warsaw", "Warszawa"),
    ("Lisbon", "Lisboa"),
    ("Copenhagen", "København"),
    ("Gothenburg", "Göteborg"),
    ("The Hague", "Den Haag"),
    ("Antwerp", "Antwerpen"),
    ("Moscow", "Moskva"),
    ("Los Angeles", "L.A."),
    ("New York City", "NYC"),
    ("Washington, D.C.", "Washington DC"),
    ("World War I", "First World War", "Great War", "WWI"),
    ("World War II", "Second World War", "WWII"),
    ("Manchester United", "Man United", "Man Utd"),
    ("Manchester City", "Man City"),
    ("Mao Zedong", "Mao Tse-tung"),
    ("Mark Twain", "Samuel Clemens", "Samuel Langhorne Clemens"),
    ("George Orwell", "Eric Blair", "Eric Arthur Blair"),
    ("Lewis Carroll", "Charles Lutwidge Dodgson", "Charles Dodgson"),
    ("Muhammad Ali", "Cassius Clay"),
    ("Pelé", "Edson Arantes do Nascimento"),
    ("Ottoman Empire", "Turkish Empire"),
    ("European Union", "EU"),
    ("Byzantine Empire", "Eastern Roman Empire"),
)


class AliasTable:
    """Groups of names that mean the same, looked up without regard to case and punctuation."""

    def __init__(self, groups: Iterable[Iterable[str]]):
        self._groups: dict[tuple[str, ...], set[int]] = {}
        for number, group in enumerate(groups):
            for name in group:
                self._groups.setdefault(words(name), set()).add(number)

    def same(self, a: str, b: str) -> bool:
        """Whether one group holds both names."""
        return bool(self._groups.get(words(a), set()) & self._groups.get(words(b), set()))


@lru_cache(maxsize=1)
def common_aliases() -> AliasTable:
    """The table of well-known names, built once."""
    return AliasTable(COMMON)


@lru_cache(maxsize=16)
def load_aliases(path: str) -> AliasTable:
    """A table from a JSONL file: one list of names that mean the same per line.

    Raises:
        UserError: the file cannot be read, or a line is no list of two or more names.
    """
    groups = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"the alias table {path} cannot be read: {e}") from e
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            group = json.loads(line)
        except json.JSONDecodeError:
            group = None
        listed = isinstance(group, list) and len(group) > 1
        if not listed or not all(isinstance(name, str) and words(name) for name in group):
            raise UserError(
                f"{path}, line {number}: expected a JSON list of two or more names, "
                'as in ["Bombay", "Mumbai"]'
            )
        groups.append(group)
    return AliasTable(groups)
