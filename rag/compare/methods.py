"""Methods of a comparison: a name, a trigger and a query, built from the configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.commands.components import Component
from probers.commands.inputs import newest_classifier, newest_prober
from probers.equivalence import EntityMatcher
from probers.types import Passage, Retriever, UserError

from ..build import for_engine, for_other, named_part, unserved, with_bank
from ..loop import RAG
from ..protocol import QueryFormulator, Trigger, as_trigger, filter_of, name_of
from ..triggers.rules import Random
from .outcomes import Outcomes

if TYPE_CHECKING:
    from ..settings import Compare

log = logging.getLogger(__name__)

#: Trained parts that some methods need, by key, with the commands that make them.
TRAINED = {
    "token_prober": "make a prober of single tokens with 'probers-datagen --source wiki pool=tokens' and "
    "'probers-train head=radio'",
    "entity_prober": "make a prober of entities before they are written with 'probers-datagen --source wiki "
    "pool=predicting' and 'probers-train layer=all'",
    "classifier": "make a classifier of questions with 'probers-datagen --source cot' and 'probers-train "
    "head=adaptive'",
}
_KEYS = (
    "trigger", "query", "trigger_options", "query_options", "retriever", "retriever_options", "if_given",
    "tune",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        name: what tables and files call it.
        tunable: its threshold is to be chosen on validation questions: the trigger
            has one, or brings one and ``tune`` says otherwise, and none was given (also not in
            a paper's form, theta).
        matched: its budget is to be matched to another method's.
        searches: its own retriever, not yet made; None where it asks the common one.
        retriever: made from it by :func:`with_retrievers`.
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
        """Whether its scores are to be calibrated on validation questions.

        They are where the trigger has a threshold to compare them with, and no calibration of its own.
        """
        compared = self.tunable or self.trigger.options.get("threshold") is not None
        return compared and self.trigger.probability is None

    @property
    def filter(self) -> str | None:
        """Name of its content-word filter; None where it uses none."""
        return filter_of(self.trigger, self.query)

    @property
    def untested(self) -> bool:
        """Whether it decides by rule, chance or the gold answer, so that there is nothing to test."""
        return self.trigger.decides_by in ("rule", "chance") or self.trigger.judges_answer

    @property
    def adaptive(self) -> bool:
        """Whether it may retrieve more for one question than for another, and not by chance."""
        by = self.trigger.decides_by
        return by == "question" or (self.trigger.after and by != "chance")

    def with_options(self, **options: Any) -> Method:
        """The same method with some options of its trigger changed."""
        return replace(self, trigger=replace(self.trigger, **options))  # type: ignore[type-var]

    def judged_by(self, matcher: EntityMatcher | None) -> Method:
        """The same method with this matcher, if its trigger judges answers by meaning."""
        asks = self.trigger.options.get("matcher", self) is None
        return self.with_options(matcher=matcher) if asks and matcher is not None else self

    def loop(self, rag: RAG) -> RAG:
        """The loop with its trigger, query and, where it has its own, retriever."""
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

    Args:
        settings: of ``probers-compare``. Where it names ``queries``, the methods ask
            with these: with one of them all alike, and with several each becomes as many. Those that
            ask nothing, or the question before anything is generated and nothing later, stay.
        bank: gives the prober; asked only if a method needs it.
        probers: in its place several by name; every method that needs one becomes as many.

    Raises:
        UserError: an unknown method, trigger, query or option; lists the choices.
    """
    names, entries = settings.triggers, settings.methods
    if not names:
        raise UserError("triggers=[] compares nothing: name at least one of " + ", ".join(entries), "empty")
    for name in names:
        if name not in entries:
            raise UserError(
                f"unknown method {name!r} in triggers: choose from {', '.join(entries)}", "unknown-choice"
            )
        if names.count(name) > 1:
            raise UserError(f"triggers names {name} twice: once is enough", "conflict")
    banks = probers or {"": bank}
    methods = [
        method
        for name in names
        for method in _build(name, entries[name], banks, other=settings.allow_other, engine=settings.engine)
    ]
    built = [method.name for method in methods]
    if probers and built == names:
        raise UserError(
            f"probers are given, but none of triggers=[{','.join(names)}] reads one: add probing", "conflict"
        )
    if twice := [name for name in built if built.count(name) > 1]:
        raise UserError(
            f"two methods would be called {twice[0]}: rename one, or the folder of its prober", "conflict"
        )
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
        elif len(queries) == 1:
            found += [replace(method, query=query) for query in queries.values()]
        else:
            found += [replace(method, name=f"{method.name}_{n}", query=q) for n, q in queries.items()]
    return found


def _build(
    name: str, entry: Mapping[str, Any], banks: Mapping[str, Callable[[], Any]], *, other: bool, engine: str
) -> list[Method]:
    """A method, or one with each of the probers if it reads one and they have names (``""`` is none)."""
    if not {"trigger", "query"} <= set(entry) <= set(_KEYS):
        raise UserError(
            f"methods.{name} must have trigger and query, and may have {', '.join(_KEYS[2:])}", "unknown-key"
        )
    searches = entry.get("retriever")
    if searches is not None:
        searches = named_part("retriever", searches, entry.get("retriever_options") or {})
    elif entry.get("retriever_options"):
        raise UserError(
            f"methods.{name} has retriever_options but no retriever: name the one they are for",
            "missing-value",
        )
    options = entry.get("trigger_options") or {}
    asked = for_engine(engine, named_part("trigger", entry["trigger"], options))
    query = named_part("query", entry["query"], entry.get("query_options") or {}).make()
    named = for_other(asked.get("bank")) if other else {}
    given = {prober: with_bank(asked, bank) for prober, bank in banks.items()}
    found = []
    for prober, parts in given.items() if any(given.values()) else [("", {})]:
        try:
            trigger = as_trigger(asked.make(**(parts | named)))
        except UserError as error:
            if not prober:
                raise
            raise UserError(f"probers, {prober}: {error}", error.code) from error
        tunable = trigger.options.get("threshold") is not None or bool(entry.get("tune"))
        method = Method(
            f"{name}_{prober}" if prober else name,
            trigger,
            query,
            tunable=tunable and not {"threshold", "theta"} & set(options),
            matched=isinstance(trigger, Random) and "rate" not in options,
            searches=searches,
        )
        found.append(method)
    return found


def with_retrievers(methods: Sequence[Method], corpus: Sequence[Passage]) -> list[Method]:
    """The methods with their own retrievers made, those of the same configuration once.

    Raises:
        UserError: one that cannot be made.
    """
    made: list[tuple[Component, Retriever]] = []
    found = []
    for method in methods:
        if method.searches is not None:
            known = next((retriever for asked, retriever in made if asked == method.searches), None)
            if known is None:
                known = method.searches.make(corpus)
                made.append((method.searches, known))
            method = replace(method, retriever=known)
        found.append(method)
    return found


def vary(settings: Compare) -> Compare:
    """Replace every method in ``settings.vary`` by one method for each of its values.

    ``vary={dragin: {threshold: [0.6, 0.9]}}`` makes the methods ``dragin_threshold=0.6`` and
    ``dragin_threshold=0.9``; ``query.top_n`` is an option of the query. Of several options every
    combination is one.

    Raises:
        UserError: a method that is not there, an option without values, or two of the same name.
    """
    asked, given = settings.triggers, settings.vary or {}
    for name, options in given.items():
        if name not in settings.methods:
            raise UserError(
                f"unknown method {name!r} in vary: choose from {', '.join(asked)}", "unknown-choice"
            )
        if name not in asked and not settings.methods[name].get("if_given"):
            raise UserError(
                f"vary names {name}, which is not compared: add it to triggers, or leave it out", "conflict"
            )
        if empty := next((option for option, values in options.items() if not values), None):
            raise UserError(f"vary.{name}.{empty}=[] has no value: name at least one", "empty")
    names: list[str] = []
    varied: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {}
    for name in asked:
        options = given.get(name) or {}
        for values in product(*options.values()):
            chosen = dict(zip(options, values, strict=True))
            own: dict[str, dict[str, Any]] = {"trigger_options": {}, "query_options": {}}
            for option, value in chosen.items():
                part = "query_options" if option.startswith("query.") else "trigger_options"
                own[part][option.removeprefix("query.")] = value
            told = ",".join(f"{option}={_told(value)}" for option, value in chosen.items())
            names.append(f"{name}_{told}" if told else name)
            if told:
                varied[names[-1]] = name, own
    record = settings.record
    record["methods"] = _with(record["methods"], varied)
    return replace(settings, triggers=names, methods=_with(settings.methods, varied), _record=record)


def _with(
    methods: Mapping[str, Mapping[str, Any]], varied: Mapping[str, tuple[str, dict[str, dict[str, Any]]]]
) -> dict[str, Mapping[str, Any]]:
    """The methods, and varied ones: each another method with some options of its own."""
    return dict(methods) | {
        new: {**methods[base], **{part: {**(methods[base].get(part) or {}), **own[part]} for part in own}}
        for new, (base, own) in varied.items()
    }


def _told(value: Any) -> str:
    """Short form of a value for the name of a method and its files."""
    if isinstance(value, list):
        return "+".join(map(_told, value))
    return Path(value).name if isinstance(value, str) else str(value)


def complete(settings: Compare) -> tuple[Compare, list[str]]:
    """Fill in the available parts of :data:`TRAINED`, and leave out the methods without theirs.

    Methods that read signals which ``settings.engine`` does not hand out are left out first.

    Returns:
        The settings, and notes on the methods left out.

    Raises:
        UserError: no method is left.
    """
    names, notes = _of_engine(settings)
    keys = {name: settings.methods[name].get("if_given") for name in names if name in settings.methods}
    found = {key: getattr(settings, key) for key in TRAINED}
    for key in TRAINED:
        if found[key] is None and key in keys.values():
            found[key] = _available(settings, key)
    missing = {name: str(key) for name, key in keys.items() if key and found[key] is None}
    for key in dict.fromkeys(missing.values()):
        lacking = [name for name in missing if missing[name] == key]
        are = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} left out"
        notes.append(f"{are}: {TRAINED[key]}, or pass {key}=PATH.")
    if missing and len(missing) == len(names):
        raise UserError(" ".join(notes).rstrip("."), "no-artifact")
    for key, part in found.items():
        if part is not None:
            log.info("%s: %s", key, part)
    return replace(settings, triggers=[name for name in names if name not in missing], **found), notes


def _of_engine(settings: Compare) -> tuple[list[str], list[str]]:
    """The methods that the engine supports, and a note on each of the others."""
    left, notes = [], []
    for name in settings.triggers:
        entry = settings.methods.get(name)
        why = None
        if entry is not None and {"trigger", "query"} <= set(entry):  # other mistakes are reported later
            parts = [
                named_part(part, entry[part], entry.get(f"{part}_options") or {})
                for part in ("trigger", "query")
            ]
            why = unserved(settings.engine, *parts)
        if why is None:
            left.append(name)
        else:
            notes.append(f"{name} is left out: {why}.")
            log.info("%s", notes[-1])
    if notes and not left:
        raise UserError(" ".join(notes).rstrip("."), "unsupported")
    return left, notes


def parts_of(settings: Compare) -> list[str]:
    """Folders or hub ids of the trained parts that the methods name, or :func:`complete` has found."""
    named = [getattr(settings, key) for key in TRAINED]
    for name in settings.triggers:
        options = (settings.methods.get(name) or {}).get("trigger_options") or {}
        named += [options.get(key) for key in ("bank", "classifier")]
    return [part for part in named if isinstance(part, str)]


def _available(settings: Compare, key: str) -> str | None:
    """The part for a key of :data:`TRAINED`: ``prober`` if it is one, else the newest of this model."""
    from probers.bank.bank import ProbeBank

    if key == "classifier":
        found = newest_classifier(model=settings.model.name)
    else:
        pool = "tokens" if key == "token_prober" else "predicting"
        if settings.prober is not None and ProbeBank.from_pretrained(settings.prober).spec.pool == pool:
            return settings.prober
        found = newest_prober("tokens" if pool == "tokens" else "entities", model=settings.model.name)
    return None if found is None else str(found)
