"""Methods of a comparison: a name, a trigger and a query, built from the configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.commands.components import Component
from probers.commands.inputs import TrainedKind, how_to_make, newest_classifier, newest_prober
from probers.equivalence import EntityMatcher
from probers.types import Passage, Pool, Retriever, UserError

from ..build import for_engine, for_other, named_part, unserved, with_bank
from ..loop import RAG
from ..protocol import TRAINED, QueryFormulator, Trigger, as_trigger, filter_of, name_of, uncounted
from ..triggers.rules import Random
from .outcomes import Outcomes

if TYPE_CHECKING:
    from ..settings import Compare

log = logging.getLogger(__name__)

#: Pools of the probers that some methods need, by kind.
_POOLS: dict[TrainedKind, Pool] = {"tokens": "tokens", "entities": "predicting", "prompts": "prompt"}
_MAY_HAVE = ("trigger_options", "query_options", "retriever", "retriever_options", "if_given", "tune")


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
        retriever = rag.retriever if self.retriever is None else self.retriever
        return replace(rag, trigger=self.trigger, query=self.query, retriever=retriever)


@dataclass(frozen=True)
class MethodRun(Outcomes):
    """Outcomes of a method, with the method as it ran."""

    method: Method = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.method.name


def build_methods(
    settings: Compare, bank: Callable[[], Any], probers: Mapping[str, Callable[[], Any]] | None = None
) -> list[Method]:
    """Build the methods named by ``settings.triggers``, in this order.

    ``bank`` loads the prober when a method needs it. With several ``probers`` instead, a method that needs
    one is built once with each. A single one of ``settings.queries`` is used by all methods; with several, a
    method is built once with each, unless it asks nothing after the text began. UserError for an unknown
    method, trigger, query or option.
    """
    names, known = settings.triggers, ", ".join(settings.methods)
    if not names:
        raise UserError(f"triggers=[] compares nothing: name at least one of {known}", "empty")
    for name in names:
        if name not in settings.methods:
            raise UserError(f"unknown method {name!r} in triggers: choose from {known}", "unknown-choice")
        if names.count(name) > 1:
            raise UserError(f"triggers names {name} twice: once is enough", "conflict")
    methods = [method for name in names for method in _build(name, settings, probers or {"": bank})]
    built = [method.name for method in methods]
    if probers and built == names:
        told = f"probers are given, but none of triggers=[{','.join(names)}] reads one: add probing"
        raise UserError(told, "conflict")
    if twice := [name for name in built if built.count(name) > 1]:
        told = f"two methods would be called {twice[0]}: rename one, or the folder of its prober"
        raise UserError(told, "conflict")
    if settings.queries is None:
        return methods
    made = [(name, named_part("query", name, {}).make()) for name in settings.queries]
    queries = {name if isinstance(name, str) else name_of(query): query for name, query in made}
    if not queries:
        raise UserError("queries=[] asks nothing: name at least one, or null for the methods' own", "empty")
    found = []
    for method in methods:
        if not method.trigger.after:
            found.append(method)
            continue
        for name, query in queries.items():
            called = method.name if len(queries) == 1 else f"{method.name}_{name}"
            found.append(replace(method, name=called, query=query))
    return found


def _part(group: str, entry: Mapping[str, Any]) -> Component:
    """Read the trigger, query or retriever of a method."""
    return named_part(group, entry[group], entry.get(f"{group}_options") or {})


def _own_retriever(entry: Mapping[str, Any]) -> Component | None:
    return None if entry.get("retriever") is None else _part("retriever", entry)


def _build(name: str, settings: Compare, banks: Mapping[str, Callable[[], Any]]) -> list[Method]:
    """Build a method, once with each of the probers if it reads one and they have names (``""`` is none)."""
    entry = settings.methods[name]
    if not {"trigger", "query"} <= set(entry) <= {"trigger", "query", *_MAY_HAVE}:
        told = f"methods.{name} must have trigger and query, and may have {', '.join(_MAY_HAVE)}"
        raise UserError(told, "unknown-key")
    searches = _own_retriever(entry)
    if searches is None and entry.get("retriever_options"):
        told = f"methods.{name} has retriever_options but no retriever"
        raise UserError(f"{told}: name the retriever that they are for", "missing-value")
    options = entry.get("trigger_options") or {}
    asked = for_engine(settings.engine, _part("trigger", entry))
    query = _part("query", entry).make()
    named = for_other(asked.get("bank")) if settings.allow_other else {}
    given = {prober: with_bank(asked, bank=bank) for prober, bank in banks.items()}
    found = []
    for prober, parts in given.items() if any(given.values()) else [("", {})]:
        try:
            trigger = as_trigger(asked.make(**(parts | named)))
        except UserError as error:
            if not prober:
                raise
            raise UserError(f"probers, {prober}: {error}", error.code) from error
        tunable = trigger.options.get("threshold") is not None or bool(entry.get("tune"))
        tunable &= not {"threshold", "theta"} & set(options)
        matched = isinstance(trigger, Random) and "rate" not in options
        called = f"{name}_{prober}" if prober else name
        found.append(Method(called, trigger, query, tunable, matched, searches))
    return found


def with_retrievers(methods: Sequence[Method], corpus: Sequence[Passage]) -> list[Method]:
    """Make the methods' own retrievers; make those of equal configuration once."""
    found: list[Method] = []
    for method in methods:
        if method.searches is not None:
            alike = [m.retriever for m in found if m.searches == method.searches]
            method = replace(method, retriever=alike[0] if alike else method.searches.make(corpus))
        found.append(method)
    return found


def vary(settings: Compare) -> Compare:
    """Replace every method in ``settings.vary`` by one for each of its values, or combination of values.

    ``vary={dragin: {threshold: [0.6, 0.9]}}`` makes the methods ``dragin_threshold=0.6`` and
    ``dragin_threshold=0.9``; ``query.top_n`` is an option of the query. UserError for an unknown method or an
    option without values.
    """
    asked, given = settings.triggers, settings.vary or {}
    for name, options in given.items():
        if name not in settings.methods:
            told = f"unknown method {name!r} in vary: choose from {', '.join(asked)}"
            raise UserError(told, "unknown-choice")
        if name not in asked and not settings.methods[name].get("if_given"):
            told = f"vary names {name}, which is not compared: add it to triggers, or leave it out"
            raise UserError(told, "conflict")
        if empty := next((option for option, values in options.items() if not values), None):
            raise UserError(f"vary.{name}.{empty}=[] has no value: name at least one", "empty")
    names: list[str] = []
    record = settings.record
    methods, recorded = dict(settings.methods), dict(record["methods"])
    for name in asked:
        options = given.get(name) or {}
        for values in product(*options.values()):
            chosen = dict(zip(options, values, strict=True))
            told = ",".join(f"{option}={_told(value)}" for option, value in chosen.items())
            names.append(f"{name}_{told}" if told else name)
            own: dict[str, dict[str, Any]] = {"trigger_options": {}, "query_options": {}}
            for option, value in chosen.items():
                part = "query_options" if option.startswith("query.") else "trigger_options"
                own[part][option.removeprefix("query.")] = value
            for entries in (methods, recorded) if told else ():
                base = entries[name]
                options_of = {part: {**(base.get(part) or {}), **its} for part, its in own.items()}
                entries[names[-1]] = {**base, **options_of}
    record["methods"] = recorded
    return replace(settings, triggers=names, methods=methods, _record=record)


def _told(value: Any) -> str:
    """Shorten a value for the name of a method and its files."""
    if isinstance(value, list):
        return "+".join(map(_told, value))
    return Path(value).name if isinstance(value, str) else str(value)


def complete(settings: Compare) -> tuple[Compare, list[str]]:
    """Fill in the available parts of :data:`TRAINED`, and leave out the methods without theirs.

    Methods are left out first if they read signals that ``settings.engine`` does not hand out, or counts that
    the retriever does not have. Returns the settings and notes on the methods left out; UserError if none is
    left.
    """
    names, notes = _of_engine(settings)
    keys = {name: settings.methods[name].get("if_given") for name in names if name in settings.methods}
    found = {key: getattr(settings, key) for key in TRAINED}
    for key in TRAINED:
        if found[key] is None and key in keys.values():
            found[key] = _available(settings, key)
    missing = {name: str(key) for name, key in keys.items() if key and found[key] is None}
    for key, lacking in grouped(missing).items():
        are = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} left out"
        notes.append(f"{are}: {how_to_make(TRAINED[key])}, or pass {key}=PATH.")
    if missing and len(missing) == len(names):
        raise UserError(" ".join(notes).rstrip("."), "no-artifact")
    for key, part in found.items():
        if part is not None:
            log.info("%s: %s", key, part)
    methods = {name: _given(entry, found) for name, entry in settings.methods.items()}
    left = [name for name in names if name not in missing]
    return replace(settings, triggers=left, methods=methods, **found), notes


def _given(entry: Mapping[str, Any], found: Mapping[str, str | None]) -> Mapping[str, Any]:
    """Add the part that a method's ``if_given`` names, if its trigger has none."""
    options, part = entry.get("trigger_options") or {}, found.get(str(entry.get("if_given")))
    lacking = [name for name in ("bank", "classifier") if name in options and options[name] is None]
    return {**entry, "trigger_options": {**options, **dict.fromkeys(lacking, part)}} if lacking else entry


def _of_engine(settings: Compare) -> tuple[list[str], list[str]]:
    """List the methods that engine and retriever support, and a note on each of the others."""
    left, notes = list(settings.triggers), []
    for name in settings.triggers:
        entry = settings.methods.get(name, {})
        if not {"trigger", "query"} <= set(entry):  # reported later
            continue
        trigger, query = _part("trigger", entry), _part("query", entry)
        searches = _own_retriever(entry) or settings.retriever
        if why := unserved(settings.engine, trigger, query) or uncounted(trigger.kind, searches.kind):
            left.remove(name)
            notes.append(f"{name} is left out: {why}.")
            log.info("%s", notes[-1])
    if notes and not left:
        raise UserError(" ".join(notes).rstrip("."), "unsupported")
    return left, notes


def grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Group names by their value, in order."""
    return {value: [name for name, own in values.items() if own == value] for value in values.values()}


def parts_of(settings: Compare) -> list[str]:
    """List folders or hub ids of the trained parts that the methods name, or :func:`complete` has found."""
    named = [getattr(settings, key) for key in TRAINED]
    for name in settings.triggers:
        options = (settings.methods.get(name) or {}).get("trigger_options") or {}
        named += [options.get(key) for key in ("bank", "classifier")]
    return [part for part in named if isinstance(part, str)]


def _available(settings: Compare, key: str) -> str | None:
    """Find the part for a key of :data:`TRAINED`: ``prober`` if it is one, else the newest of this model."""
    from probers.bank.bank import Prober

    model, kind, own = settings.model.name, TRAINED[key], settings.prober
    if kind == "questions":
        found = newest_classifier(model=model)
    elif own is not None and Prober.from_pretrained(own).spec.pool == _POOLS[kind]:
        return own
    else:
        found = newest_prober(kind, model=model)
    return None if found is None else str(found)
