"""The methods of a comparison: a name, a trigger and a query, built from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf, open_dict

from probers.commands.artifacts import newest_classifier, newest_prober
from probers.commands.parts import build, plain
from probers.equivalence import EntityMatcher
from probers.types import Passage, Retriever, UserError

from ..build import for_engine, for_other, named_part, unserved, with_bank
from ..loop import RAG
from ..protocol import QueryFormulator, Trigger, as_trigger, filter_of
from ..triggers.rules import Random
from .outcomes import Outcomes

#: Parts that some methods need, by key, with how to make one.
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
        searches: its own retriever's configuration; None where it asks the one of all.
        retriever: made of that by :func:`with_retrievers`.
    """

    name: str
    trigger: Trigger
    query: QueryFormulator
    tunable: bool = False
    matched: bool = False
    searches: DictConfig | None = None
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
        """What decides about content words for it; None where it does not ask."""
        return filter_of(self.trigger, self.query)

    @property
    def untested(self) -> bool:
        """Whether it decides without looking, or by the truth, so that there is nothing to test."""
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
        """The same method; a trigger that judges answers by their meaning does so by this matcher."""
        asks = self.trigger.options.get("matcher", self) is None
        return self.with_options(matcher=matcher) if asks and matcher is not None else self

    def loop(self, rag: RAG) -> RAG:
        """The loop with its trigger, query and, where it has its own, retriever."""
        retriever = rag.retriever if self.retriever is None else self.retriever
        return replace(rag, trigger=self.trigger, query=self.query, retriever=retriever)


@dataclass(frozen=True)
class MethodRun(Outcomes):
    """How a method did, and the method as it ran."""

    method: Method = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.method.name


def build_methods(
    cfg: DictConfig, bank: Callable[[], Any], probers: Mapping[str, Callable[[], Any]] | None = None
) -> list[Method]:
    """The methods named by ``cfg.triggers``, in this order.

    Args:
        cfg: configuration of ``probers-compare``. Where it names ``queries``, the methods ask
            with these: with one of them all alike, and with several each becomes as many. Those that
            ask nothing, or the question before anything is generated and nothing later, stay.
        bank: gives the prober; asked only if a method needs it.
        probers: in its place several by name; every method that needs one becomes as many.

    Raises:
        UserError: an unknown method, trigger, query or option; lists the choices.
    """
    names = [str(n) for n in cfg.triggers]
    if not names:
        raise UserError("triggers=[] compares nothing: name at least one of " + ", ".join(cfg.methods))
    for name in names:
        if name not in cfg.methods:
            raise UserError(f"unknown method {name!r} in triggers: choose from {', '.join(cfg.methods)}")
        if names.count(name) > 1:
            raise UserError(f"triggers names {name} twice: once is enough")
    banks = probers or {"": bank}
    methods = [
        method
        for name in names
        for method in _build(name, cfg.methods[name], banks, other=cfg.allow_other, engine=cfg.engine)
    ]
    built = [method.name for method in methods]
    if probers and built == names:
        raise UserError(f"probers are given, and none of triggers=[{','.join(names)}] reads one: add probing")
    if twice := [name for name in built if built.count(name) > 1]:
        raise UserError(f"two methods would be called {twice[0]}: rename one, or the folder of its prober")
    if cfg.queries is None:
        return methods
    queries = {str(name): build(named_part("query", str(name), {})) for name in cfg.queries}
    if not queries:
        raise UserError("queries=[] asks nothing: name at least one, or null for the methods' own")
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
    name: str, node: DictConfig, banks: Mapping[str, Callable[[], Any]], *, other: bool, engine: str
) -> list[Method]:
    """A method, or one with each of the probers if it reads one and they have names (``""`` is none)."""
    entry = OmegaConf.to_container(node, resolve=True)
    if not isinstance(entry, Mapping) or not {"trigger", "query"} <= set(entry) <= set(_KEYS):
        raise UserError(f"methods.{name} must have trigger and query, and may have {', '.join(_KEYS[2:])}")
    searches = entry.get("retriever")
    if searches is not None:
        searches = named_part("retriever", searches, entry.get("retriever_options") or {})
    elif entry.get("retriever_options"):
        raise UserError(f"methods.{name} has retriever_options and no retriever: name the one they are for")
    options = entry.get("trigger_options") or {}
    asked = for_engine(engine, named_part("trigger", entry["trigger"], options))
    query = build(named_part("query", entry["query"], entry.get("query_options") or {}))
    named = for_other(asked.get("bank")) if other else {}
    given = {prober: with_bank(asked, bank) for prober, bank in banks.items()}
    found = []
    for prober, parts in given.items() if any(given.values()) else [("", {})]:
        try:
            trigger = as_trigger(build(asked, **(parts | named)))
        except UserError as error:
            if not prober:
                raise
            raise UserError(f"probers, {prober}: {error}") from error
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
    made: list[tuple[DictConfig, Retriever]] = []
    found = []
    for method in methods:
        if method.searches is not None:
            known = next((retriever for node, retriever in made if node == method.searches), None)
            if known is None:
                known = build(method.searches, corpus)
                made.append((method.searches, known))
            method = replace(method, retriever=known)
        found.append(method)
    return found


def vary(cfg: DictConfig) -> None:
    """Put in place of every method that ``cfg.vary`` names one for each of the values it gives.

    ``vary={dragin: {threshold: [0.6, 0.9]}}`` makes the methods ``dragin_threshold=0.6`` and
    ``dragin_threshold=0.9``; ``query.top_n`` is an option of the query. Of several options every
    combination is one.

    Raises:
        UserError: a method that is not there, an option without values, or two of the same name.
    """
    asked = [str(name) for name in cfg.triggers]
    given: dict[str, dict[str, list[Any]]] = plain(cfg.vary) if cfg.vary is not None else {}
    for name, options in given.items():
        if name not in cfg.methods:
            raise UserError(f"unknown method {name!r} in vary: choose from {', '.join(asked)}")
        if name not in asked and not cfg.methods[name].get("if_given"):
            raise UserError(f"vary names {name}, which is not compared: add it to triggers, or leave it out")
        if empty := next((option for option, values in options.items() if not values), None):
            raise UserError(f"vary.{name}.{empty}=[] has no value: name at least one")
    names: list[str] = []
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
                with open_dict(cfg.methods):
                    cfg.methods[names[-1]] = OmegaConf.merge(cfg.methods[name], own)
    cfg.triggers = names


def _told(value: Any) -> str:
    """A value in the name of a method and its files: of a path the last part, of a list its parts."""
    if isinstance(value, list):
        return "+".join(map(_told, value))
    return Path(value).name if isinstance(value, str) else str(value)


def complete(cfg: DictConfig) -> list[str]:
    """Fill in what of :data:`TRAINED` is there, and leave out the methods whose part is not; says which.

    Those that read what ``cfg.engine`` does not hand out are left out first.

    Raises:
        UserError: no method is left.
    """
    beyond = _beyond_engine(cfg)
    names = [str(n) for n in cfg.triggers]
    keys = {name: cfg.methods[name].get("if_given") for name in names if name in cfg.methods}
    if cfg.token_prober is None and "token_prober" in keys.values():
        cfg.token_prober = _prober_of(cfg, "tokens")
    if cfg.entity_prober is None and "entity_prober" in keys.values():
        cfg.entity_prober = _prober_of(cfg, "entities")
    if cfg.classifier is None and "classifier" in keys.values():
        found = newest_classifier(model=cfg.model.name)
        cfg.classifier = None if found is None else str(found)
    missing = {name: str(key) for name, key in keys.items() if key and cfg[key] is None}
    notes = beyond
    for key in dict.fromkeys(missing.values()):
        lacking = [name for name in missing if missing[name] == key]
        are = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} left out"
        notes.append(f"{are}: {TRAINED[key]}, or pass {key}=PATH.")
    if missing and len(missing) == len(names):
        raise UserError(" ".join(notes).rstrip("."))
    cfg.triggers = [name for name in names if name not in missing]
    for key in TRAINED:
        if cfg[key] is not None:
            print(f"{key}: {cfg[key]}")
    return notes


def _beyond_engine(cfg: DictConfig) -> list[str]:
    """Leave out the methods that cannot be had from the engine; says why of each."""
    left, notes = [], []
    for name in map(str, cfg.triggers):
        entry = cfg.methods.get(name)
        why = None
        if entry is not None and {"trigger", "query"} <= set(entry):  # what is wrong with it is said later
            parts = [
                named_part(part, entry[part], entry.get(f"{part}_options") or {})
                for part in ("trigger", "query")
            ]
            why = unserved(cfg.engine, *parts)
        if why is None:
            left.append(name)
        else:
            notes.append(f"{name} is left out: {why}.")
            print(notes[-1])
    if notes and not left:
        raise UserError(" ".join(notes).rstrip("."))
    cfg.triggers = left
    return notes


def parts_of(cfg: DictConfig) -> list[str]:
    """Folders or hub ids of the trained parts that the methods name, or :func:`complete` has found."""
    named = [cfg[key] for key in TRAINED]
    for name in cfg.triggers:
        options = (cfg.methods.get(name) or {}).get("trigger_options") or {}
        named += [options.get(key) for key in ("bank", "classifier")]
    return [part for part in named if isinstance(part, str)]


def _prober_of(cfg: DictConfig, kind: Literal["tokens", "entities"]) -> str | None:
    """The prober of tokens or of entities: ``cfg.prober`` if it is one, else the newest of this model."""
    from probers.bank.bank import ProbeBank

    pool = "tokens" if kind == "tokens" else "predicting"
    if cfg.prober is not None and ProbeBank.from_pretrained(str(cfg.prober)).spec.pool == pool:
        return str(cfg.prober)
    found = newest_prober(kind, model=cfg.model.name)
    return None if found is None else str(found)
