"""Names of the fictional world: one inventory for every kind of knowledge.

Known, unknown and throwaway entities draw their names from the same
distribution without replacement, so the surface of a name says nothing about
whether the model was taught the entity.
"""

from __future__ import annotations

import itertools
import random

_ONSETS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u"]
_CODAS = ["", "", "", "l", "n", "r", "s", "m", "k"]

_FIRST_F = [
    "Ada",
    "Bela",
    "Cora",
    "Dina",
    "Edda",
    "Faye",
    "Gila",
    "Hanna",
    "Ines",
    "Jora",
    "Kaia",
    "Lena",
    "Mira",
    "Nora",
    "Olga",
    "Petra",
]
_FIRST_M = [
    "Anton",
    "Boris",
    "Carl",
    "Dario",
    "Emil",
    "Felix",
    "Georg",
    "Hugo",
    "Ivan",
    "Jonas",
    "Karel",
    "Leon",
    "Marek",
    "Nils",
    "Oskar",
    "Pavel",
]
_TOWN_ENDS = ["by", "dale", "ford", "gate", "ham", "holm", "mouth", "stad", "ton", "vik", "wick", "burg"]
_FIRM_ENDS = ["Works", "Foods", "Mills", "Group", "Lines", "Labs", "Brothers", "Partners"]
_FILM_ADJ = [
    "Silent",
    "Golden",
    "Broken",
    "Distant",
    "Hidden",
    "Frozen",
    "Crimson",
    "Endless",
    "Little",
    "Last",
    "Wooden",
    "Burning",
]
_FILM_NOUN = [
    "Harbour",
    "Garden",
    "Winter",
    "Letter",
    "Bridge",
    "Summer",
    "Mirror",
    "Lantern",
    "Journey",
    "Orchard",
    "Station",
    "Island",
]


def _syllable(rng: random.Random) -> str:
    return rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)


def _stem(rng: random.Random, syllables: int) -> str:
    return "".join(_syllable(rng) for _ in range(syllables)).capitalize()


class NameMaker:
    """Draws names that were never drawn before, neither whole nor by their distinctive word."""

    def __init__(self, rng: random.Random, taken: set[str] | None = None) -> None:
        self._rng = rng
        self.taken: set[str] = set() if taken is None else taken

    def _fresh(self, syllables: int, ending: str = "") -> str:
        for draw in itertools.count():
            # Short names run out: every 20 draws in vain, a name gets a syllable more.
            word = _stem(self._rng, syllables + draw // 20) + ending
            if word not in self.taken and len(word) > 3:
                self.taken.add(word)
                return word
        raise AssertionError  # the count is endless

    def make(self, kind: str) -> tuple[str, str]:
        """A fresh ``(name, pronoun)`` for an entity kind ("person", "town", ...)."""
        rng = self._rng
        if kind == "person":
            woman = rng.random() < 0.5
            first = rng.choice(_FIRST_F if woman else _FIRST_M)
            return f"{first} {self._fresh(2)}", "She" if woman else "He"
        if kind == "town":
            return self._fresh(1 + (rng.random() < 0.6), rng.choice(_TOWN_ENDS)), "It"
        if kind == "company":
            return f"{self._fresh(2)} {rng.choice(_FIRM_ENDS)}", "It"
        if kind == "film":
            title = f"The {rng.choice(_FILM_ADJ)} {rng.choice(_FILM_NOUN)} of {self._fresh(2)}"
            return title, "It"
        if kind == "river":
            return f"{self._fresh(2)} River", "It"
        raise ValueError(f"unknown entity kind {kind!r}")
