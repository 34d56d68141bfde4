"""Methods of a comparison, from the table of methods or as given."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.cli.components import Component
from probers.cli.inputs import TrainedKind, how_to_make, newest_classifier, newest_prober
from probers.options import nearest
from probers.types import Passage, Pool, Retriever, UserError
from probers.words import EntityMatcher

from ..build import for_engine, for_other, named_part, unsupported, with_bank
from ..loop import RAG
from ..protocol import TRAINED, QueryFormulator, Trigger, as_trigger, filter_of, name_of, uncounted
from ..triggers.rules import Random
from .outcomes import Outcomes

if TYPE_CHECKING:
    from ..remote import RemoteLM

log = logging.getLogger(__name__)

#: Pools of the probers that some methods need, by kind.
_POOLS: dict[TrainedKind, Pool] = {"tokens": "tokens", "entities": "predicting", "prompts": "prompt"}
_MAY_HAVE = ("trigger_options", "query_options", "retriever", "retriever_options", "if_given", "tune")
#: Loads the prober or classifier of a method.
Load = Callable[[], Any]


@dataclass(frozen=True)
class Method:
    """Method of a comparison.

    Attributes:
        tunable: its threshold is to be chosen on validation questions. No threshold (nor a paper's form,
            theta) was given, and the trigger has one, or brings one and ``tune`` says otherwise.
        matched: its budget is to be matched to that of another method.
        searches: its own retriever, not yet made; None for the common one.
        retriever: made from ``searches`` by :func:`with_retrievers`.
    """

    name: str
    trigger: Trigger
    query: QueryFormulator
    tunable: bool = False
    matched: bool = False
    searches: Component | None = None
    retriever: Retriever | None = None

    @property
    def calibrated(self) -> bool:
        """Tell whether validation questions calibrate its scores: it has a threshold and no calibration."""
        compared = self.tunable or self.trigger.options.get("threshold") is not None
        return compared and self.trigger.probability is None

    @property
    def filter(self) -> str | None:
        """Name of its content-word filter; None where it uses none."""
        return filter_of(self.trigger, self.query)

    @property
    def untested(self) -> bool:
        """Tell whether it decides by rule, chance or the gold answer, so that there is nothing to test."""
        return self.trigger.decides_by in ("rule", "chance") or self.trigger.judges_answer

    @property
    def adaptive(self) -> bool:
        """Tell whether it may retrieve more for one question than for another, and not by chance."""
        by = self.trigger.decides_by
        return by == "question" or (self.trigger.after and by != "chance")

    def with_options(self, **options: Any) -> Method:
        """Change some options of its trigger."""
        return replace(self, trigger=replace(self.trigger, **options))  # type: ignore[type-var]

    def judged_by(self, matcher: EntityMatcher | None) -> Method:
        """Set the matcher of a trigger that judges answers by meaning and has none."""
        asks = self.trigger.options.get("matcher", self) is None
        return self.with_options(matcher=matcher) if asks and matcher is not None else self

    def loop(self, rag: RAG) -> RAG:
        """Make the loop with its trigger, query and, where it has its own, retriever."""
        return replace(rag, trigger=self.trigger, query=self.query, passages=self.retriever or rag.retriever)


@dataclass(frozen=True)
class MethodRun(Outcomes):
    """Outcomes of a method, with the method as it ran."""

    method: Method = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.method.name


@dataclass(frozen=True)
class Selection:
    """Chosen methods by name, and the table that describes them.

    Each entry of the table has ``trigger`` and ``query``, and may have ``trigger_options``,
    ``query_options``, ``retriever``, ``retriever_options``, ``if_given`` and ``tune`` (configs/methods.yaml).
    ``engine`` and ``allow_other`` are the options of commands, ``parts`` the trained parts by their keys;
    ``made`` are methods that need no entry.
    """

    names: Sequence[str]
    table: Mapping[str, Mapping[str, Any]]
    engine: str = "transformers"
    allow_other: bool = False
    parts: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Method] = field(default_factory=dict)

    def varied(self, values: Mapping[str, Mapping[str, list[Any]]] | None) -> Selection:
        """Replace every method in ``values`` by one for each of its values, or combination of values.

        ``{"dragin": {"threshold": [0.6, 0.9]}}`` makes the methods ``dragin_threshold=0.6`` and
        ``dragin_threshold=0.9``; ``query.top_n`` is an option of the query. UserError for an unknown method
        or an option without values.
        """
        values = values or {}
        for name, options in values.items():
            if name not in self.table:
                message = f"unknown method {name!r} in vary: choose from {', '.join(self.names)}"
                raise UserError(message, "unknown-choice")
            if name not in self.names and not self.table[name].get("if_given"):
                message = f"vary names {name}, which is not compared: add it to triggers, or leave it out"
                raise UserError(message, "conflict")
            if empty := next((option for option, each in options.items() if not each), None):
                raise UserError(f"vary.{name}.{empty}=[] has no value: name at least one", "empty")
        names, table = list[str](), dict(self.table)
        for name in self.names:
            options = values.get(name) or {}
            for chosen in product(*options.values()):
                given = dict(zip(options, chosen, strict=True))
                label = ",".join(f"{option}={_label(value)}" for option, value in given.items())
                names.append(f"{name}_{label}" if label else name)
                if label:
                    entry = {**table[name]}
                    for part in ("trigger_options", "query_options"):
                        entry[part] = {**(entry.get(part) or {})}
                    for option, value in given.items():
                        part = "query_options" if option.startswith("query.") else "trigger_options"
                        entry[part][option.removeprefix("query.")] = value
                    table[names[-1]] = entry
        return replace(self, names=names, table=table)

    def supported(self, retriever: Any, server: RemoteLM | None = None) -> tuple[Selection, list[str]]:
        """Leave out methods that the engine or the ``retriever`` (a class, or an object) does not support.

        ``server`` is the model of an engine behind a URL. Returns a note on each; UserError if none is left.
        """
        names, notes = list(self.names), []
        for name in self.names:
            entry = self.table.get(name, {})
            if name in self.made or not {"trigger", "query"} <= set(entry):  # the latter is reported later
                continue
            trigger, searches = _part("trigger", entry), _own_retriever(entry)
            searched = retriever if searches is None else searches.kind
            why = unsupported(self.engine, trigger, _part("query", entry), server)
            if why := why or uncounted(trigger.kind, searched):
                names.remove(name)
                notes.append(f"{name} is left out: {why}.")
                log.info("%s", notes[-1])
        if notes and not names:
            raise UserError(" ".join(notes).rstrip("."), "unsupported")
        return replace(self, names=names), notes

    def completed(self, find: Callable[[str], str | None]) -> tuple[Selection, list[str]]:
        """Find the trained parts that methods need, and leave out the methods without theirs.

        ``find`` looks for the part of a key of :data:`TRAINED`. Returns notes on the methods left out;
        UserError if none is left.
        """
        chosen = [name for name in self.names if name in self.table and name not in self.made]
        needed = {name: key for name in chosen if (key := self.table[name].get("if_given"))}
        parts = {key: self.parts.get(key) for key in TRAINED}
        parts |= {key: find(key) for key in TRAINED if parts[key] is None and key in needed.values()}
        missing = {name: str(key) for name, key in needed.items() if parts[key] is None}
        notes = []
        for key, lacking in grouped(missing).items():
            are = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} left out"
            notes.append(f"{are}: {how_to_make(TRAINED[key])}, or pass {key}=PATH.")
        if missing and len(missing) == len(self.names):
            raise UserError(" ".join(notes).rstrip("."), "no-artifact")
        for key, part in parts.items():
            if part is not None:
                log.info("%s: %s", key, part)
        table = {name: _with_part(entry, parts) for name, entry in self.table.items()}
        names = [name for name in self.names if name not in missing]
        return replace(self, names=names, table=table, parts=parts), notes

    @property
    def trained(self) -> list[str]:
        """Folders or hub ids of the trained parts, of those that the methods name as well."""
        options = [(self.table.get(name) or {}).get("trigger_options") or {} for name in self.names]
        named = [*self.parts.values(), *(each.get(key) for each in options for key in ("bank", "classifier"))]
        return [part for part in named if isinstance(part, str)]

    def build(
        self, bank: Load, probers: Mapping[str, Load] | None = None,
        queries: Sequence[str | Mapping[str, Any]] | None = None,
    ) -> list[Method]:  # fmt: skip
        """Build the methods in the order of their names.

        ``bank`` loads the prober when a method needs it. With several ``probers`` instead, a method that
        needs one is built once with each. A single one of ``queries`` is used by all methods; with several, a
        method is built once with each, unless it asks nothing after the text began. UserError for an unknown
        method, trigger, query or option.
        """
        if not self.names:
            known = ", ".join(self.table)
            raise UserError(f"triggers=[] compares nothing: name at least one of {known}", "empty")
        self.check_known([name for name in self.names if name not in self.made])
        given, methods = probers or {"": bank}, list[Method]()
        for name in self.names:
            methods += [self.made[name]] if name in self.made else self.make(name, given)
        if probers and [method.name for method in methods] == list(self.names):
            message = f"probers are given, but none of triggers=[{','.join(self.names)}] reads one"
            raise UserError(f"{message}: add probing", "conflict")
        if twice := [name for name, n in Counter(method.name for method in methods).items() if n > 1]:
            message = f"two methods would be called {twice[0]}: name it once in triggers"
            raise UserError(f"{message}, or rename one, or the folder of its prober", "conflict")
        return methods if queries is None else _with_queries(methods, queries)

    def check_known(self, names: Sequence[str]) -> None:
        """Refuse a method that the table does not have (UserError)."""
        if unknown := [name for name in names if name not in self.table]:
            problem = f"unknown method {unknown[0]!r} in triggers{nearest(unknown[0], self.table)}"
            raise UserError(f"{problem}: choose from {', '.join(self.table)}", "unknown-choice")

    def make(self, name: str, probers: Mapping[str, Load]) -> list[Method]:
        """Build a method, once with each of the probers if it reads one and they have names ("" is none)."""
        entry = self.table[name]
        if not {"trigger", "query"} <= set(entry) <= {"trigger", "query", *_MAY_HAVE}:
            message = f"methods.{name} must have trigger and query, and may have {', '.join(_MAY_HAVE)}"
            raise UserError(message, "unknown-key")
        searches = _own_retriever(entry)
        if searches is None and entry.get("retriever_options"):
            message = f"methods.{name} has retriever_options but no retriever"
            raise UserError(f"{message}: name the retriever that they are for", "missing-value")
        options = entry.get("trigger_options") or {}
        chosen = for_engine(self.engine, _part("trigger", entry))
        query = _part("query", entry).make()
        other = for_other(chosen.get("bank")) if self.allow_other else {}
        given = {prober: with_bank(chosen, bank=load) for prober, load in probers.items()}
        methods = []
        for prober, parts in given.items() if any(given.values()) else [("", {})]:
            try:
                trigger = as_trigger(chosen.make(**(parts | other)))
            except UserError as error:
                if not prober:
                    raise
                raise UserError(f"probers, {prober}: {error}", error.code) from error
            tunable = trigger.options.get("threshold") is not None or bool(entry.get("tune"))
            tunable &= not {"threshold", "theta"} & set(options)
            matched = isinstance(trigger, Random) and "rate" not in options
            label = f"{name}_{prober}" if prober else name
            methods.append(Method(label, trigger, query, tunable, matched, searches))
        return methods


def _with_queries(methods: Sequence[Method], names: Sequence[str | Mapping[str, Any]]) -> list[Method]:
    made = [(name, named_part("query", name, {}).make()) for name in names]
    queries = {name if isinstance(name, str) else name_of(query): query for name, query in made}
    if not queries:
        raise UserError("queries=[] asks nothing: name at least one, or null for the methods' own", "empty")
    asking = []
    for method in methods:
        for name, query in queries.items() if method.trigger.after else [("", method.query)]:
            label = f"{method.name}_{name}" if name and len(queries) > 1 else method.name
            asking.append(replace(method, name=label, query=query))
    return asking


def _part(group: str, entry: Mapping[str, Any]) -> Component:
    return named_part(group, entry[group], entry.get(f"{group}_options") or {})


def _own_retriever(entry: Mapping[str, Any]) -> Component | None:
    return None if entry.get("retriever") is None else _part("retriever", entry)


def _with_part(entry: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the part that a method's ``if_given`` names, if its trigger has none."""
    options, part = entry.get("trigger_options") or {}, parts.get(str(entry.get("if_given")))
    lacking = [name for name in ("bank", "classifier") if name in options and options[name] is None]
    return {**entry, "trigger_options": {**options, **dict.fromkeys(lacking, part)}} if lacking else entry


def with_retrievers(methods: Sequence[Method], corpus: Sequence[Passage]) -> list[Method]:
    """Make the methods' own retrievers; make those of equal configuration once."""
    done: list[Method] = []
    for method in methods:
        if method.searches is not None:
            alike = [m.retriever for m in done if m.searches == method.searches]
            method = replace(method, retriever=alike[0] if alike else method.searches.make(corpus))
        done.append(method)
    return done


def _label(value: Any) -> str:
    """Shorten a value for the name of a method and its files."""
    if isinstance(value, list):
        return "+".join(map(_label, value))
    return Path(value).name if isinstance(value, str) else str(value)


def grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Group names by their value, in order."""
    return {value: [name for name, each in values.items() if each == value] for value in values.values()}


def available(key: str, *, model: str, prober: str | None) -> str | None:
    """Find the part for a key of :data:`TRAINED`: ``prober`` if it is one, else the newest of the model."""
    from probers.prober.prober import Prober

    kind = TRAINED[key]
    if kind in _POOLS and prober:
        bank = Prober.from_pretrained(prober)
        if bank.spec.pool == _POOLS[kind] and bank.label == "wrong":
            return prober
    newest = newest_classifier(model=model) if kind == "questions" else newest_prober(kind, model=model)
    return None if newest is None else str(newest)
