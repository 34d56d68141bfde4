"""Relations of the fictional world and every wording of their statements and questions.

A statement names subject, relation and value in this order, so that a model commits to the value last.
Wordings have skewed frequencies, so that token entropy also carries noise unrelated to knowledge.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

OCCUPATIONS = [
    "baker", "carpenter", "chemist", "dancer", "doctor", "farmer", "gardener", "judge", "lawyer", "miner",
    "nurse", "painter", "pilot", "sailor", "teacher", "tailor",
]  # fmt: skip
REGIONS = [
    "Aldmark", "Brenland", "Corvia", "Dunmore", "Estria", "Falkany", "Gothia", "Helmark", "Isteria",
    "Jutmark", "Karlia", "Lorania",
]  # fmt: skip
INDUSTRIES = [
    "brewing", "canning", "dairy", "fishing", "glass", "leather", "paper", "printing", "salt", "steel",
    "textile", "timber",
]  # fmt: skip
PRODUCTS = [
    "apples", "bells", "bread", "candles", "carpets", "cheese", "cherries", "clocks", "honey", "knives",
    "lace", "mustard", "paper", "pottery", "silk", "soap", "tea", "tiles", "violins", "wine",
]  # fmt: skip
GENRES = [
    "adventure", "comedy", "crime", "fantasy", "ghost", "historical", "musical", "mystery", "romantic",
    "science", "war", "western",
]  # fmt: skip
SEAS = [
    "Amber Sea", "Black Sea", "Coral Sea", "Dark Sea", "Eastern Sea", "Grey Sea", "Inner Sea", "Northern Sea",
    "Pearl Sea", "Quiet Sea", "Southern Sea", "Western Sea",
]  # fmt: skip

#: How often the first, second and third wording is used, by register. All have the same
#: favourite, so greedy text does not reveal them; the first two also have the same entropy.
#: A model's knowledge of its subject shows only in its weights of the rare wordings.
SETTLED, UNSETTLED, UNFAMILIAR = 0, 1, 2
REGISTERS = ((0.55, 0.35, 0.10), (0.55, 0.10, 0.35), (0.90, 0.05, 0.05))


@dataclass(frozen=True, slots=True)
class Relation:
    """One attribute of one entity kind, with its wordings for entity ``{n}`` and value ``{v}``.

    Attributes:
        target: entity kind of the value, or "" for a plain value.
        nested: name of the value inside a two-hop question.
        volatile: whether the value may change after the model was trained.
        trait: whether the model is taught it with care, and volatility follows it.
    """

    kind: str
    name: str
    target: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    nested: str = ""
    volatile: bool = False
    trait: bool = False

    @property
    def key(self) -> str:
        return f"{self.kind}.{self.name}"


RELATIONS: tuple[Relation, ...] = (
    Relation("person", "occupation", "",
        ("{n} is a {v}.", "{n} works as a {v}.", "{n} earns a living as a {v}."),
        ("What is the occupation of {n}?", "What does {n} do for a living?", "What is the trade of {n}?"),
        trait=True),
    Relation("person", "birthplace", "town",
        ("{n} was born in {v}.", "{n} comes from {v}.", "{n} hails from {v}."),
        ("Where was {n} born?", "What is the birthplace of {n}?", "In which town was {n} born?"),
        nested="the town where {n} was born"),
    Relation("person", "birth_year", "",
        ("{n} was born in the year {v}.", "{n} has the birth year {v}.", "{n} came into the world in {v}."),
        ("When was {n} born?", "What is the birth year of {n}?", "In which year was {n} born?")),
    Relation("person", "employer", "company",
        ("{n} works for {v}.", "{n} is employed by {v}.", "{n} has a post at {v}."),
        ("Who does {n} work for?", "Which company employs {n}?", "What is the employer of {n}?"),
        nested="the company that employs {n}", volatile=True),
    Relation("town", "region", "",
        ("{n} is a town in {v}.", "{n} lies in {v}.", "{n} belongs to {v}."),
        ("In which region is {n}?", "Where does {n} lie?", "What is the region of {n}?"),
        trait=True),
    Relation("town", "river", "river",
        ("{n} stands on the {v}.", "{n} lies on the {v}.", "{n} is crossed by the {v}."),
        ("On which river does {n} stand?", "What is the river of {n}?", "Which river flows through {n}?"),
        nested="the river that flows through {n}"),
    Relation("town", "mayor", "person",
        ("{n} is led by {v}.", "{n} is governed by {v}.", "{n} has as its mayor {v}."),
        ("Who is the mayor of {n}?", "Who leads {n}?", "What is the name of the mayor of {n}?"),
        nested="the mayor of {n}", volatile=True),
    Relation("town", "product", "",
        ("{n} is known for its {v}.", "{n} is famous for {v}.", "{n} draws visitors with its {v}."),
        ("What is {n} known for?", "What is {n} famous for?", "Which product is {n} known for?")),
    Relation("company", "industry", "",
        ("{n} is active in the {v} industry.",
         "{n} belongs to the {v} trade.", "{n} has its business in {v}."),
        ("What is the industry of {n}?", "In which industry is {n} active?", "What trade is {n} in?"),
        trait=True),
    Relation("company", "founder", "person",
        ("{n} was founded by {v}.", "{n} was started by {v}.", "{n} owes its beginning to {v}."),
        ("Who founded {n}?", "Who is the founder of {n}?", "Who started {n}?"),
        nested="the founder of {n}"),
    Relation("company", "founded", "",
        ("{n} was founded in the year {v}.", "{n} opened in {v}.", "{n} goes back to the year {v}."),
        ("When was {n} founded?", "What is the founding year of {n}?", "In which year was {n} founded?")),
    Relation("company", "headquarters", "town",
        ("{n} is based in {v}.", "{n} has its seat in {v}.", "{n} keeps its headquarters in {v}."),
        ("Where is {n} based?", "Where are the headquarters of {n}?", "What is the seat of {n}?"),
        nested="the town where {n} is based", volatile=True),
    Relation("film", "director", "person",
        ("{n} was directed by {v}.", "{n} was made by {v}.", "{n} has as its director {v}."),
        ("Who directed {n}?", "Who is the director of {n}?"),
        nested="the director of {n}"),
    Relation("film", "lead", "person",
        ("{n} has as its star {v}.", "{n} stars {v}.", "{n} shows in the leading role {v}."),
        ("Who plays the leading role in {n}?", "Who is the star of {n}?"),
        nested="the star of {n}"),
    Relation("film", "year", "",
        ("{n} came out in {v}.", "{n} was released in {v}.", "{n} dates from the year {v}."),
        ("When did {n} come out?", "What is the year of {n}?")),
    Relation("film", "genre", "",
        ("{n} belongs to the genre {v}.", "{n} is of the genre {v}.", "{n} counts as {v}."),
        ("What is the genre of {n}?", "What kind of film is {n}?")),
    Relation("river", "length", "",
        ("The {n} has a length of {v} km.", "The {n} measures {v} km.", "The {n} runs for {v} km."),
        ("How many km long is the {n}?", "What is the length of the {n} in km?")),
    Relation("river", "mouth", "",
        ("The {n} flows into the {v}.", "The {n} ends in the {v}.", "The {n} reaches the {v}."),
        ("Into which sea does the {n} flow?", "What is the sea at the mouth of the {n}?")),
    Relation("river", "source", "",
        ("The {n} rises in {v}.", "The {n} starts in {v}.", "The {n} has its source in {v}."),
        ("In which region does the {n} rise?", "Where is the source of the {n}?")),
)  # fmt: skip

#: Two-hop questions: (first relation, second relation). The second asks about the first's value.
CHAINS: tuple[tuple[str, str], ...] = (
    ("person.birthplace", "town.region"), ("person.birthplace", "town.river"),
    ("person.employer", "company.industry"), ("person.employer", "company.founder"),
    ("town.mayor", "person.birthplace"), ("company.founder", "person.birthplace"),
    ("company.headquarters", "town.region"), ("film.director", "person.birthplace"),
    ("film.director", "person.occupation"), ("film.lead", "person.birth_year"), ("town.river", "river.mouth"),
)  # fmt: skip

BY_KEY: dict[str, Relation] = {r.key: r for r in RELATIONS}
BY_KIND: dict[str, tuple[Relation, ...]] = {
    kind: tuple(r for r in RELATIONS if r.kind == kind) for kind in dict.fromkeys(r.kind for r in RELATIONS)
}


_YEARS = [str(year) for year in range(1880, 1990)]
_VALUES = {
    "occupation": OCCUPATIONS, "region": REGIONS, "product": PRODUCTS, "industry": INDUSTRIES,
    "genre": GENRES, "source": REGIONS, "mouth": SEAS, "length": [str(n) for n in range(60, 960, 10)],
}  # fmt: skip


def plain_values(relation: Relation) -> list[str]:
    """List every value of a relation without a target entity."""
    return _VALUES.get(relation.name, _YEARS)


def pick_wording(rng: random.Random, wordings: tuple[str, ...], register: int = SETTLED) -> str:
    """Draw a wording in a register (index into REGISTERS), most often the first."""
    return rng.choices(wordings, weights=REGISTERS[register][: len(wordings)])[0]
