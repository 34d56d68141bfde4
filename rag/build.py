"""Components of the loop from names and objects, and the questions that their probers were trained on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from probers.cli.components import Component, values_of
from probers.cli.runs import ANSWERS, RunFolder
from probers.data.corpus import load_corpus
from probers.data.splits import Seen
from probers.prober.io import CONFIG, locate
from probers.prompts import AUTO, AUTO_PROMPT, PromptTemplate
from probers.types import Generation, Question, Retriever, RunError, UserError

from .protocol import QueryFormulator, Trigger, as_trigger, attends, check_part, name_of, reads_states
from .remote import RemoteLM
from .triggers.probing import Probing
from .triggers.rules import ServedProbing

if TYPE_CHECKING:
    from probers.cli.settings import Answering
    from probers.model.causal_lm import CausalLM
    from probers.prober.prober import Prober

log = logging.getLogger(__name__)

#: ``engine`` of a model in this process: transformers or vLLM.
LOCAL, VLLM = "transformers", "vllm"
#: Methods of comparisons for probers by the pool of their states; "probing" is for all others.
_BY_POOL = {"tokens": "radio", "predicting": "before_entity", "prompt": "probing_before"}


def method_of(given: Any) -> str | None:
    """Name the method of comparisons that reads a prober, also its trigger; None for other objects."""
    from probers.prober.prober import Prober  # loads torch

    if not isinstance(given, Prober):
        return None
    if given.label == "helps":
        return "helps_before" if given.spec.pool == "prompt" else "helps"
    return _BY_POOL.get(given.spec.pool, "probing")


def make_trigger(given: Any) -> Trigger:
    """Make a trigger from its name, from a prober, or from an object with ``needs`` and ``__call__``."""
    if isinstance(given, str):
        return as_trigger(Component.of("trigger", given).make())
    if (method := method_of(given)) is not None:
        return as_trigger(Component.of("trigger", method).make(bank=given))
    return as_trigger(given)


def make_query(given: Any, trigger: Trigger) -> QueryFormulator:
    """Make a query from its name, return an object as it is; None is the usual query of the trigger.

    The usual query is that of the method with the trigger's name, or else the answer.
    """
    if given is None:
        method = values_of("", "methods").get(trigger.name, {"query": "answer"})
        return named_part("query", method["query"], method.get("query_options") or {}).make()  # type: ignore[no-any-return]
    made = Component.of("query", given).make() if isinstance(given, str) else given
    return check_part("query", made)  # type: ignore[no-any-return]


def make_prompt(given: str | PromptTemplate | None) -> PromptTemplate:
    """Make a prompt from its name; None is the form that fits the model."""
    given = AUTO_PROMPT if given is None else given
    return Component.of("prompt", given).make() if isinstance(given, str) else given  # type: ignore[no-any-return]


def make_retriever(given: Any) -> Retriever:
    """Make BM25 of a corpus: its name or file, passages, texts or dictionaries; a retriever stays itself."""
    if is_retriever(given):
        return given  # type: ignore[no-any-return]
    from .retrievers.bm25 import BM25

    return BM25(load_corpus(given) if isinstance(given, (str, Path)) else given)


def is_retriever(given: Any) -> bool:
    """Tell a retriever from passages, also those of a ``datasets.Dataset`` (UserError: the class of one)."""
    check_part("passages", given)
    return hasattr(given, "search") and not hasattr(given, "column_names")  # a Dataset searches vectors


def served(engine: str) -> bool:
    """Tell whether ``engine`` is a server's address."""
    return engine not in (LOCAL, VLLM)


def remote(settings: Answering) -> RemoteLM | None:
    """Return the model behind ``settings.engine`` if it is a URL; refuse options that it would ignore."""
    engine, at_once, model = settings.engine, settings.batch_size, settings.model
    if not served(engine):
        if settings.engine_options:
            message = f"engine_options is for an engine behind a URL, and engine={engine} is none"
            raise UserError(f"{message}: leave it out", "conflict")
        return None
    for option in fields(model):
        if option.name not in ("name", "on_too_long") and getattr(model, option.name) != option.default:
            message = f"model.{option.name} needs engine=transformers: the server has loaded its model"
            raise UserError(f"{message}. Leave it out", "unsupported")
    if model.on_too_long == "truncate_left":
        message = "model.on_too_long=truncate_left needs the tokenizer, which a server does not hand out"
        raise UserError(f"{message}: choose error or skip", "unsupported")
    lm = RemoteLM(
        engine, model.name, at_once=8 if at_once == "auto" else at_once, timeout=settings.engine_timeout,
        options=settings.engine_options, on_too_long=model.on_too_long,
    )  # fmt: skip
    log.info("engine: %s, model %s (%s)", engine, model.name, lm.description)
    if settings.prompt.name == AUTO:
        log.info("note: prompt=auto takes the plain form: a URL does not hand out its model's chat template")
    return lm


def resumed(lm: RemoteLM | None, folder: RunFolder | None) -> RemoteLM | None:
    """Keep the answers of a server in the folder of the run, which resumes with the same server only."""
    if lm is not None and folder is not None:
        if (begun := folder.chosen.get("engine", lm.description)) != lm.description:
            message = f"{folder.path} was begun with another server ({begun}; now {lm.description})"
            raise UserError(f"{message}: choose another out, or overwrite=true", "mismatch")
        folder.choose("engine", begun)
        lm.keep(folder.path / ANSWERS)
    return lm


def unsupported(
    engine: str, trigger: Component, query: Component, server: RemoteLM | None = None
) -> str | None:
    """Say why a trigger and a query cannot be used with an engine, as part of a sentence, or None.

    ``server`` is the model of an engine behind a URL, once it is known what it tells.
    """
    if engine == LOCAL:
        return None
    name = f"trigger={name_of(trigger.kind)}"
    options = [key for key in ("bank", "combine", "with_entropy") if trigger.get(key)]
    if served(engine) and getattr(trigger.kind, "prober", None) and (options or not _is_probing(trigger)):
        name += f" with {options[0]}" if options else ""
        return f"{name} reads hidden states, which {engine} does not hand out"
    chosen, formulator = for_engine(engine, trigger), query.make()
    # A trigger with a bank or classifier cannot be made without it; it reads states or nothing of the model.
    made = None if {"bank", "classifier"} & set(chosen.options) else as_trigger(chosen.make())
    parts = {**({} if made is None else {name: made}), f"query={name_of(formulator)}": formulator}
    for name, part in parts.items():
        if reads_states(part) and served(engine):
            return f"{name} reads hidden states, which {engine} does not hand out"
        if attends(part):
            return f"{name} reads attention, which {engine} does not hand out"
        if getattr(part, "draws", False) and engine == VLLM:
            return f"{name} draws answers, and engine=vllm takes the likeliest tokens only"
        if getattr(part, "reads_texts", False) and served(engine):
            return f"{name} reads probabilities of given texts, which {engine} does not hand out"
    return None if server is None else unreadable(server, made, formulator)


#: Models whose attention has been read successfully.
_READABLE: WeakSet[CausalLM | RemoteLM] = WeakSet()
_NOTHING = np.zeros(0, dtype=np.float32)
_ONE_TOKEN = Generation("", (), (), (0,), "", ((0, 0),), _NOTHING, _NOTHING, "length")


def check_readable(lm: CausalLM | RemoteLM, trigger: Trigger, query: Any) -> None:
    """Refuse a trigger or query whose signals the model lacks; try attention on one token."""
    if why := unreadable(lm, trigger, query):
        raise UserError(f"{why}: choose another, or another server", "unsupported")
    named = {f"trigger={trigger.name}": trigger, f"query={name_of(query)}": query}
    reading = " and ".join(name for name, part in named.items() if reads_states(part))
    if reading and not lm.spec.layers:
        raise UserError(f"{reading} read hidden states, which a server does not hand out", "unsupported")
    attending = " and ".join(name for name, part in named.items() if attends(part))
    if not attending or lm in _READABLE:
        return
    try:
        lm.attention_alone([_ONE_TOKEN])
    except (RunError, UserError) as error:
        raise UserError(f"{attending} cannot be used with this model: {error}", "unsupported") from error
    _READABLE.add(lm)


def unreadable(lm: Any, trigger: Trigger | None, query: Any) -> str | None:
    """Say what a trigger or query reads that a server does not tell, as part of a sentence, or None."""
    if trigger is not None and trigger.served and getattr(lm, "prober", None) is None:
        return f"trigger={trigger.name} reads a server's scores, but this server has no prober"
    reading = [f"trigger={trigger.name}"] if trigger is not None and trigger.reads_tokens else []
    reading += [f"query={name_of(query)}"] if getattr(query, "reads_tokens", False) else []
    if reading and getattr(lm, "top", None) == 0:
        return f"{' and '.join(reading)} read log-probabilities of tokens, but {lm.without}"
    return None


def _is_probing(trigger: Component) -> bool:
    return isinstance(trigger.kind, type) and issubclass(trigger.kind, Probing)


def for_engine(engine: str, trigger: Component) -> Component:
    """Return a trigger, or its counterpart that reads a server's scores if the engine is a server."""
    if not served(engine) or not _is_probing(trigger):
        return trigger
    options = {key: trigger.get(key) for key in ("threshold", "theta")}
    return Component("trigger", f"{ServedProbing.__module__}.{ServedProbing.__name__}", options)


def with_bank(trigger: Component, **parts: Callable[[], Any]) -> dict[str, Any]:
    """Make the arguments ``bank`` or ``classifier`` of a trigger that has none."""
    return {key: make() for key, make in parts.items() if trigger.get(key, "none") is None}


def for_other(bank: Any) -> dict[str, Any]:
    """Load a prober given by its path so that it accepts a model with other weights."""
    from probers.prober.prober import Prober

    return {"bank": Prober.from_pretrained(bank, allow_other=True)} if isinstance(bank, str) else {}


def loop_options(settings: Answering) -> dict[str, Any]:
    """Return prompt and limits of the loop as arguments of :class:`~probers.rag.loop.RAG`."""
    names = ("k", "max_new_tokens", "max_retrievals", "answer_tokens", "draft")
    return {"prompt": settings.prompt.make(), **{name: getattr(settings, name) for name in names}}


def named_part(group: str, name: str | Mapping[str, Any], options: Mapping[str, Any]) -> Component:
    """Build a component from its name, or from a user's ``_target_`` node, with some options changed."""
    if isinstance(name, str):
        return Component.of(group, name, **options)
    return Component.read(group, {**name, **options})


@dataclass(frozen=True)
class Contamination:
    """Questions that the probers and classifiers of a run were trained or tuned on.

    Attributes:
        silent: probers and classifiers without a record of their training questions.
        allowed: value of ``allow_overlap``; if true, every question is asked, and the report says so.
    """

    seen: Seen
    silent: Sequence[str]
    allowed: bool

    @classmethod
    def of(
        cls, parts: Sequence[str], *, allowed: bool, server: str | None = None,
        banks: Mapping[str, Prober] | None = None,
    ) -> Contamination:  # fmt: skip
        """Read the records of probers and classifiers; refuse one without a record unless ``allowed``.

        ``parts`` are folders or hub ids, ``banks`` further probers by name. The prober of a ``server``, by
        its address, never has a record.
        """
        records = {part: Seen.read(locate(part)) for part in parts}
        records |= {f"the prober of {name}": bank.seen for name, bank in (banks or {}).items()}
        silent = [part for part, seen in records.items() if seen is None]
        if silent and not allowed:
            message = f"{silent[0]} does not say which questions it was trained on; the same could be asked"
            remedy = "train it again with probers-train, or pass allow_overlap=true, which the report shows"
            raise UserError(f"{message}: {remedy}", "overlap")
        silent += [] if server is None else [f"the prober of {server}"]
        return cls(reduce(or_, filter(None, records.values()), Seen({})), silent, allowed)

    def not_asked(self, question: Question) -> bool:
        """Tell whether a question is left out: it was used for training or for choosing a threshold."""
        return not self.allowed and self.seen.split_of(question) in ("train", "validation")

    def not_tuned_on(self, question: Question) -> bool:
        """Tell whether no threshold may be chosen on a question."""
        return not self.allowed and self.seen.split_of(question) == "train"

    def notes(self, questions: Sequence[Question]) -> list[str]:
        """List notes on allowed overlap, and on probers without a record, for reports."""
        notes = []
        if known := sum(self.seen.split_of(question) in ("train", "validation") for question in questions):
            notes.append(
                f"Overlap: {known} of the {len(questions)} questions are among those that a part of this run "
                "was trained or tuned on (allow_overlap=true); figures of that part are too good."
            )
        if self.silent:
            notes.append(f"Overlap unknown: {', '.join(self.silent)} does not say what it was trained on.")
        return notes


def named(given: Sequence[str]) -> dict[str, str]:
    """Map the name of each prober to its folder or hub id; a prober given twice is a UserError.

    A folder of probers stands for all of them, in the order of the numbers in their names. A prober is
    named after its folder, and also after the folders above it if two names would be equal.
    """
    paths = [below for path in given for below in _below(path)]
    places = [Path(path).resolve() for path in paths]
    for number, place in enumerate(places):
        if (first := places.index(place)) < number:
            message = f"probers names {paths[first]} and again {paths[number]}: once is enough"
            raise UserError(message, "conflict")
    names = [place.name for place in places]
    for length in range(2, max((len(place.parts) for place in places), default=0)):
        if len(set(names)) == len(names):
            break
        names = ["-".join(place.parts[-length:]) for place in places]
    return dict(zip(names, paths, strict=True))


def _below(path: str) -> list[str]:
    folder = Path(path)
    probers = [] if (folder / CONFIG).is_file() else [file.parent for file in folder.glob(f"*/{CONFIG}")]
    probers.sort(key=lambda each: (list(map(int, re.findall(r"\d+", each.name))), each.name))
    return list(map(str, probers)) or [path]


def check_one_model(banks: Mapping[str, Prober]) -> None:
    """Refuse probers of different models; names two of them (UserError)."""
    models = {path: bank.spec.model for path, bank in banks.items()}
    for path, model in models.items():
        first, other = next(iter(models.items()))
        if not model.same_as(other):
            texts = other.same_weights(model) and f" with {other.other_texts(model)}"
            message = f"probers: {first} reads the model {other} and {path} reads {model}{texts or ''}"
            raise UserError(f"{message}: a comparison has one model", "mismatch")
