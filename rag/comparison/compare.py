"""Comparison of retrieval triggers on the same questions, on equal terms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from probers.checksums import inputs
from probers.cli.components import Component, values_of
from probers.cli.inputs import find_prober, load_matcher
from probers.cli.runs import RunFolder, taking_back
from probers.cli.settings import Model
from probers.data.corpus import as_passages, fingerprint, load_corpus
from probers.data.questions import QuestionSource, make_source
from probers.data.questions.jsonl import Given
from probers.evaluation.answers import RULES, right_by
from probers.files import digest
from probers.model.language_model import check_model
from probers.options import check_options, refuse_unknown
from probers.prober.decision import ThresholdRule
from probers.types import Passage, Retriever, UserError

from ..build import (
    Contamination,
    check_one_model,
    is_retriever,
    loop_options,
    make_prompt,
    make_query,
    make_trigger,
    method_of,
    named,
)
from ..protocol import TRAINED, check_counts, name_of
from ..settings import Compare
from .findings import Comparison
from .methods import Method, Selection, available
from .plan import Choice, Plan

if TYPE_CHECKING:
    from probers.prober.prober import Prober


__all__ = ["Comparison", "compare", "plan_of"]

#: Keys of probers-compare that are about files and machines.
_NOT_OPTIONS = {
    "corpus", "model", "engine", "engine_options", "engine_timeout", "batch_size", "part", "launch",
    "wait", "passage_words", "corpus_cache", "matcher",
}  # fmt: skip
#: Methods that need nothing trained.
_TRIGGERS = ("never", "always", "random", "oracle", "entropy", "rind")


def compare(
    lm: Any, questions: Any, passages: Any, *, triggers: Sequence[Any] | None = None,
    out: str | Path | None = None, validation: Any = None, **options: Any,
) -> Comparison:  # fmt: skip
    """Answer the same questions with every trigger, and measure who was right and at what cost.

    Args:
        lm: the language model.
        questions: texts, dictionaries with ``question`` and ``answers``, ``Question`` objects, a
            ``QuestionSource``, or the name of a data set or file. Those of the test split are asked. A list
            without splits is asked whole, and thresholds stay as they come unless ``validation`` is given;
            a file or data set without splits is dealt to splits if thresholds are to be chosen.
        passages: texts, dictionaries with ``text``, passages, the name of a corpus or file, or a retriever.
        triggers: names of methods as of probers-compare, trained probers, triggers, or pairs of one of these
            and a query. A trigger given as an object keeps its threshold; others without a published one
            have it chosen on validation questions. None takes those that need nothing trained, without
            oracle where questions have no answers.
        out: folder that keeps traces, results.json and report.html, and from which the same call resumes.
        validation: questions to choose thresholds on, in a form of ``questions``, or the largest number of
            those of the set's own validation split (600 unless given).
        options: keys of probers-compare such as ``k``, ``max_new_tokens``, ``prompt`` (a template too),
            ``prober`` (a trained prober too), ``match``, ``sweep``, ``wrong`` or ``resamples``. ``limit``
            is None, for all questions, unless it is given.

    Raises:
        UserError: a wrong request, before the model runs.
        RunError: a model that gives NaN, or files that cannot be written.
    """
    check_model("compare", lm)
    source, settings, notes = make_source(questions), _settings(lm, options), []
    if validation is None and isinstance(source, Given):
        source = source.all_asked()
    if triggers is None and isinstance(source, Given) and not source.answered:
        triggers = [name for name in _TRIGGERS if name != "oracle"]
        notes = ["oracle left out: it needs gold answers, and some questions have none"]
    others: Any = settings.validation if validation is None else validation
    if isinstance(validation, int):
        check_options(Compare, {"validation": validation})
    elif validation is not None:
        others = make_source(validation)
    common: Retriever | Component = settings.retriever
    corpus: Sequence[Passage] = []
    if is_retriever(passages):
        if "retriever" in options:
            raise UserError("passages is a retriever, and retriever= is given too: leave one out", "conflict")
        common = passages
    else:
        corpus = load_corpus(passages) if isinstance(passages, (str, Path)) else as_passages(passages)
    plan = plan_of(
        settings, source, corpus, retriever=common, validation=others,
        triggers=_TRIGGERS if triggers is None else triggers, given={"prober": options.get("prober")},
    )  # fmt: skip
    loop = {**plan.loop}
    if "prompt" in options:
        loop["prompt"] = make_prompt(options["prompt"])
    plan = replace(plan, notes=[*plan.notes, *notes], loop=loop)
    name = str(passages) if isinstance(passages, (str, Path)) else f"{len(corpus)} passages" if corpus else ""
    heading = {
        "command": f"probers.rag.compare with {source.spec}", "model": lm.spec.id,
        "corpus": name or type(passages).__name__,
    }  # fmt: skip
    config = _record(plan, options, lm, others, corpus)
    if out is None:
        with TemporaryDirectory() as place:
            return plan.run(lm, Path(place), config, heading=heading)
    with taking_back():
        folder = RunFolder(Path(out), "compare", config)
        folder.claim()
        comparison = plan.run(lm, folder.path, config, heading=heading)
        comparison.save(folder.path)
        folder.finish(comparison.summary)
        return comparison


def _settings(lm: Any, options: Mapping[str, Any]) -> Compare:
    """Check the options, and take those that are not given from the command (UserError)."""
    known = {each.name for each in fields(Compare) if each.name[0] != "_"} - _NOT_OPTIONS
    refuse_unknown("compare", options, sorted(known))
    plain = {name: options[name] for name in options.keys() - {"prompt", "retriever", "prober"}}
    check_options(Compare, plain)
    table = {**values_of("", "methods"), **plain.pop("methods", {})}
    settings = Compare(**{"limit": None, **plain}, model=Model(name=lm.spec.id))
    if isinstance(prober := options.get("prober"), (str, Path)):
        settings = replace(settings, prober=str(prober))
    if (retriever := options.get("retriever")) is not None:
        settings = replace(settings, retriever=Component.of("retriever", retriever))
    return replace(settings, methods=_filled(table, settings))


def _filled(value: Any, settings: Compare) -> Any:
    """Replace ``${key}`` in the table of methods by the option of this name."""
    if isinstance(value, Mapping):
        return {key: _filled(each, settings) for key, each in value.items()}
    key = re.fullmatch(r"\$\{(\w+)\}", value) if isinstance(value, str) else None
    return value if key is None else getattr(settings, key[1], value)


def selection_of(settings: Compare) -> Selection:
    """Take the methods of the command's settings."""
    parts = {key: getattr(settings, key) for key in TRAINED}
    return Selection(settings.triggers, settings.methods, settings.engine, settings.allow_other, parts)


def plan_of(
    settings: Compare, source: QuestionSource, passages: Sequence[Passage], *,
    retriever: Component | Retriever, triggers: Sequence[Any], validation: QuestionSource | int | None,
    given: Mapping[str, Any],
) -> Plan:  # fmt: skip
    """Make the plan of a comparison: its methods, and the questions that no trained part has seen.

    ``settings`` has the terms; ``validation`` are other questions to choose thresholds on, or the largest
    number of the source's own; ``given`` may have a trained ``prober`` in place of that of
    the settings, and the ``server`` behind a URL.
    """
    from probers.prober.prober import Prober

    prober, probers = given.get("prober"), named(settings.probers)
    banks, objects, trained = dict[str, Prober](), dict[str, Prober](), dict[str, str]()
    matcher = load_matcher(settings) if source.mentions or settings.wrong == "match" else None
    if (right := right_by(settings.wrong, matcher)) is None:
        raise UserError(f"wrong={settings.wrong} is unknown: choose {RULES}", "unknown-choice")
    rule = ThresholdRule.parse(settings.threshold)
    if probers and settings.prober is not None:
        message = f"prober={settings.prober} and probers are both given: name every prober in probers"
        raise UserError(message, "conflict")

    @cache
    def bank(path: str | None = None) -> Prober:
        if path is None and prober is not None and not isinstance(prober, (str, Path)):
            objects["prober"] = prober
            return prober  # type: ignore[no-any-return]
        if path is None:
            path = trained["prober"] = find_prober(settings)
        banks[path] = Prober.from_pretrained(path, allow_other=settings.allow_other)
        return banks[path]

    selection = _with_objects(selection_of(settings), triggers, bank, objects)
    searched = retriever.kind if isinstance(retriever, Component) else retriever
    selection, notes = selection.supported(searched, given.get("server"))
    find = partial(available, model=settings.model.name, prober=settings.prober)
    selection, left_out = selection.completed(find)
    selection = selection.varied(settings.vary)
    loads = {name: partial(bank, path) for name, path in probers.items()}
    methods = [m.judged_by(matcher) for m in selection.build(bank, loads, settings.queries)]
    check_one_model(banks | objects)
    read = list(dict.fromkeys([*banks, *selection.trained]))
    server = settings.engine if any(method.trigger.served for method in methods) else None
    if prober is None and settings.prober is not None and settings.prober not in banks:
        left_out = [*left_out, f"prober={settings.prober} is not used: no method reads it"]
    contamination = Contamination.of(read, allowed=settings.allow_overlap, server=server, banks=objects)
    choice = Choice.of(source, methods, contamination, settings, validation)
    judged = [] if matcher is None else [f"Of match: {matcher.described()}."]
    notes = [*contamination.notes(choice.questions), *notes, *left_out, *judged, *choice.notes()]
    for method in methods:
        method.trigger.check_questions(choice.questions)
        check_counts(method.trigger, method.searches.kind if method.searches else searched)
    notes += dict.fromkeys(note for method in methods for note in method.trigger.notes(choice.questions))
    return Plan(
        settings=settings, loop=loop_options(settings), matcher=matcher, right=right, rule=rule,
        methods=methods, choice=choice, passages=passages, retriever=retriever,
        banks=banks | objects, notes=notes, read=read,
        trained={k: part for k, part in {**selection.parts, **trained}.items() if isinstance(part, str)},
    )  # fmt: skip


def _record(
    plan: Plan, options: Mapping[str, Any], lm: Any, others: Any, corpus: Sequence[Passage]
) -> dict[str, Any]:
    """Collect the configuration of a call in plain values; a folder resumes with the same one only."""
    kinds = (str, bool, int, float, list, Mapping)
    plain = {name: value for name, value in options.items() if value is None or isinstance(value, kinds)}
    parts = {m.name: {"trigger": m.trigger.name, "query": name_of(m.query)} for m in plan.methods}
    methods = {m.name: {**m.trigger.record, **parts[m.name]} for m in plan.methods}
    files = others.files if isinstance(others, QuestionSource) else ()
    return plain | {
        "model": str(lm.spec), "prompt": plan.loop["prompt"].fingerprint, "compared": methods,
        "asked": plan.choice.chosen.record, "validation": digest(repr(others)),
        "passages": fingerprint(corpus), "inputs": inputs(*files, *plan.read),
    }  # fmt: skip


def _with_objects(
    selection: Selection, triggers: Sequence[Any], bank: Any, objects: dict[str, Prober]
) -> Selection:
    """Choose the methods of ``triggers``: names of the table, and methods made of objects."""
    triggers = [triggers] if isinstance(triggers, str) else triggers
    taken = {each for each in triggers if isinstance(each, str)}
    names, methods = list[str](), dict[str, Method]()
    for each in triggers:
        if isinstance(each, str):
            names.append(each)
            continue
        trigger, query = each if isinstance(each, tuple) and len(each) == 2 else (each, None)
        of_prober = method_of(trigger)
        if (name := trigger if isinstance(trigger, str) else of_prober) is not None:
            selection.check_known([name])
            load = bank if of_prober is None else lambda: trigger  # noqa: B023 (called at once)
            (method,) = selection.make(name, {"": load})
        else:
            chosen = make_trigger(trigger)
            method = Method(chosen.name, chosen, make_query(None, chosen))
        if query is not None:
            query = make_query(query, method.trigger)
            method = replace(method, name=f"{method.name}_{name_of(query)}", query=query)
        numbered = (f"{method.name}_{number}" for number in count(2))
        label = next(each for each in chain([method.name], numbered) if each not in taken)
        taken.add(label)
        names.append(label)
        methods[label] = replace(method, name=label)
        if of_prober is not None:
            objects[label] = trigger
    return replace(selection, names=names, made=methods)
