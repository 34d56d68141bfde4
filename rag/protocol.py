"""Contract between the loop, triggers and query formulations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, get_origin

import numpy as np

from probers.model.language_model import SentenceEnd
from probers.options import Limits, check_value, field_types
from probers.prompts import PromptTemplate
from probers.signals import Variant
from probers.signals.rarity import Counts
from probers.types import (
    Decision,
    EndToken,
    Generation,
    Needs,
    Passage,
    Question,
    Retriever,
    RunError,
    UserError,
)
from probers.words.text import content_filter

if TYPE_CHECKING:
    from probers.cli.inputs import ProberKind, TrainedKind
    from probers.model.causal_lm import CausalLM
    from probers.store.spec import ModelSpec

    from .remote import RemoteLM


#: Trained parts that some methods of a comparison need, by the keys that name them.
TRAINED: dict[str, TrainedKind] = {
    "token_prober": "tokens", "entity_prober": "entities", "prompt_prober": "prompts",
    "grounding_prober": "grounding", "helps_prober": "helps", "helps_prompt_prober": "helps_before",
    "classifier": "questions",
}  # fmt: skip
#: Part of a text: nothing, its first sentence, or all of it.
Share = Literal["nothing", "sentence", "all"]


def _cannot_generate(prompts: Sequence[str], **options: Any) -> list[Generation]:
    raise RunError("a trigger asked the model for text, but its state has no generate function")


@dataclass(frozen=True, slots=True)
class State:
    """Progress of one question, as triggers and query formulations see it.

    Attributes:
        generate: function that generates like :meth:`RAG.generate <probers.rag.loop.RAG.generate>`.
        question_span: [start, end) of the question's own text in ``generation.prompt``.
        partial: accepted answer text at the end of ``generation.prompt``.
        fresh: True if the passages were fetched for the very place where this generation begins.
        verdict: the trigger's own, from before anything was written; None where it gave none.
        answer: final answer, should the generation be accepted; only for triggers with ``reads_answer``.
        final: generation of ``answer``, if the text ended without one; likewise.
        budget: tokens that may be written after the prompt.
        answer_tokens: further tokens for a final answer, if a text ends without one.
        spend: function that adds a generation requested by the trigger to the question's counters, with
            ``read=False`` if its prompt was counted before (:meth:`Counters.add
            <probers.rag.traces.Counters.add>`).
        retriever: the loop's, for triggers that count in its index; None where there is no loop.
    """

    question: Question
    lm: CausalLM | RemoteLM
    prompt: PromptTemplate
    question_span: tuple[int, int]
    partial: str = ""
    passages: tuple[Passage, ...] = ()
    retrievals: int = 0
    fresh: bool = False
    verdict: Decision | None = None
    answer: str | None = None
    final: Generation | None = None
    budget: int = 64
    answer_tokens: int = 0
    spend: Callable[..., None] = lambda generation, **how: None
    generate: Callable[..., list[Generation]] = _cannot_generate
    retriever: Retriever | None = None

    def completed(self, generation: Generation) -> str:
        """Return the whole text, should the generation be accepted, with a final answer asked for."""
        text, cue = self.partial + generation.text, self.prompt.answer_cue
        if cue.lower() not in text.lower() and self.answer:
            text = f"{text} {cue} {self.answer}"
        return text


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Length of text that a trigger needs: it fires once there is more. None stands for no such limit."""

    tokens: int | None = None
    sentences: int | None = None

    def limit(self, budget: int, stop: Sequence[str | EndToken]) -> int:
        """Return the largest number of tokens to write, at most ``budget``.

        One token beyond the look-ahead shows that the text goes on. The length of a stop string is added: a
        text that is cut short must not have been about to end.
        """
        return budget if self.tokens is None else min(budget, self.tokens + 1 + _reach(stop))

    def over(self, stop: Sequence[str | EndToken]) -> Callable[[str], bool] | None:
        """Build a test of whether a growing text has more sentences than this; None without a limit."""
        if self.sentences is None:
            return None
        end, reach = SentenceEnd(self.sentences), _reach(stop)
        return lambda text: end.find(text[: max(0, len(text) - reach)]) is not None


def _reach(stop: Sequence[str | EndToken]) -> int:
    """Count the characters at the end of a text that may yet prove to belong to a stop string."""
    return max((len(each) for each in stop if isinstance(each, str)), default=1) - 1


class Checked:
    """Base of triggers and queries: values that the types of their options forbid are refused (UserError)."""

    group: ClassVar[str] = "query"

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in field_types(kind).items():
            key, value = f"{self.group}.{name}", getattr(self, name)
            value = value.item() if isinstance(value, np.generic) else value
            if get_origin(hint) is Literal:
                one_of(key, value, *get_args(hint))
            limited = any(isinstance(each, Limits) for each in getattr(hint, "__metadata__", ()))
            # An infinite threshold, which a rule may choose, is a number.
            if limited or (float in (hint, *get_args(hint)) and value not in (math.inf, -math.inf)):
                check_value(key, value, hint)


class Trigger(Checked):
    """Base class of triggers, which decide from a generation whether to retrieve, with a score.

    A subclass implements :meth:`__call__` for one generation, or :meth:`decide` for a batch. Its options are
    the fields of a dataclass.

    Attributes:
        before: it may retrieve with the question before anything is generated.
        after: it may retrieve once something is written.
        decides_by: source of its score: the text, the question alone, a rule, or chance.
        reads_answer: every text is completed to a final answer before it is asked, and ``state.answer`` is
            that answer.
        judges_answer: it compares this answer with the gold answers.
        reads_texts: it asks for the probabilities of given texts.
        attends_alone: it asks for ``state.lm.attention_alone``.
        filters: it asks which words carry content, see :func:`probers.words.text.is_content`.
        takes: part of a text written from fetched passages that is accepted without judging it: "nothing"
            (the passages stay until others replace them), its first "sentence", or "all". Text after an
            accepted part is written without passages, and judged.
        prober: the kind of heads that read states for it: of whole "answers", single "tokens", "entities",
            "prompts", or what "helps".
        served: it reads the scores of the server that writes.
        reads_tokens: it reads or counts the tokens of a text, which some servers do not tell.
        counts: it counts phrases in the retriever's index (:class:`probers.signals.rarity.Counts`).
    """

    group = "trigger"
    before: ClassVar[bool] = False
    after: ClassVar[bool] = True
    decides_by: ClassVar[Literal["text", "question", "rule", "chance"]] = "text"
    reads_answer: ClassVar[bool] = False
    judges_answer: ClassVar[bool] = False
    reads_texts: ClassVar[bool] = False
    prober: ClassVar[ProberKind | None] = None
    served: ClassVar[bool] = False
    reads_tokens: ClassVar[bool] = True
    counts: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """Signals to record during generation; by default only those that cost nothing."""
        return Needs()

    @property
    def adapter(self) -> Path | None:
        """Folder of the adapter that the model must run with; None for the model as it is."""
        return None

    @property
    def attends_alone(self) -> bool:
        return False

    @property
    def reads_states(self) -> bool:
        """Tell whether it reads hidden states, of the text or of further texts that it has written."""
        return bool(self.needs.features)

    @property
    def draws(self) -> bool:
        """Tell whether it asks the model for drawn texts."""
        return False

    @property
    def takes(self) -> Share:
        return "nothing"

    @property
    def filters(self) -> bool:
        return False

    def check(self, model: ModelSpec, prompt: PromptTemplate) -> None:
        """Refuse a model or prompt that it was not made for, before anything runs."""

    def check_questions(self, questions: Sequence[Question]) -> None:
        """Refuse questions without gold answers if it judges answers (UserError)."""
        without = [q.id for q in questions if not q.answers]
        if without and self.judges_answer:
            lacking = f"{len(without)} of {len(questions)} questions have none ({without[0]!r} for example)"
            remedy = 'add "answers" or choose another trigger'
            raise UserError(f"trigger={self.name} needs gold answers, but {lacking}: {remedy}", "labels")

    def notes(self, questions: Sequence[Question]) -> list[str]:
        """List remarks on the questions asked, for reports."""
        return []

    def decide_before(self, states: Sequence[State]) -> Sequence[Decision | None]:
        """Decide on each question before anything is written; None retrieves without a verdict."""
        return [None] * len(states)

    def look_ahead(self, question: Question) -> LookAhead | None:
        """Return the length of text after which the loop asks the trigger; None for the whole text."""
        return None

    def __call__(self, generation: Generation, state: State) -> Decision:
        return self.decide([generation], [state])[0]

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        return [self(*each) for each in zip(generations, states, strict=True)]

    @property
    def probability(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Calibrated P(answer is wrong) of scores (n,); None where its scores have no calibration."""
        return None

    @property
    def name(self) -> str:
        return name_of(self)

    @property
    def options(self) -> dict[str, Any]:
        """Its options as they were given, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init} if is_dataclass(self) else {}

    @property
    def record(self) -> dict[str, Any]:
        """Its plain options as they are in force, for records and reports."""
        return {k: v for k, v in self.options.items() if v is None or isinstance(v, (bool, int, float, str))}

    @property
    def sweep_option(self) -> str | None:
        """The option to move for a curve over its settings: its threshold, if it has one."""
        return "threshold" if "threshold" in self.options else None


class QueryFormulator(Protocol):
    """Formulation of one query; ``needs`` names the signals to record for it.

    One with ``find(queries, states, retriever, k)`` also chooses the passages of each of several queries.
    """

    @property
    def needs(self) -> Needs: ...

    def __call__(
        self, question: Question, generation: Generation, decision: Decision, state: State
    ) -> str: ...


class PaperOrReleased:
    """Requirements of DRAGIN's trigger and query, by their ``variant``.

    The paper's variant reads the attention recorded while generating. The released one runs another pass over
    the written text without passages, and reads only words that carry content.
    """

    variant: Variant

    @property
    def needs(self) -> Needs:
        return Needs(attention=self.variant == "paper")

    @property
    def attends_alone(self) -> bool:
        return self.variant == "released"

    filters = attends_alone


class _Adapted(Trigger):
    """Adapter of an object with ``needs`` and ``__call__`` that is no Trigger, with Trigger's defaults."""

    def __init__(self, part: Trigger) -> None:
        self._part = part

    @property
    def needs(self) -> Needs:
        return self._part.needs

    @property
    def name(self) -> str:
        return name_of(self._part)

    def __call__(self, generation: Generation, state: State) -> Decision:
        return self._part(generation, state)


def as_trigger(part: Any) -> Trigger:
    """Return a trigger unchanged; wrap any other object with ``needs`` and ``__call__`` (UserError: none)."""
    check_part("trigger", part)
    kind = type(part)
    if isinstance(part, Trigger) and kind.__call__ is Trigger.__call__ and kind.decide is Trigger.decide:
        raise UserError(f"trigger={kind.__name__} never decides: give it __call__ or decide", "own-class")
    return part if isinstance(part, Trigger) else _Adapted(part)


def check_part(option: str, part: Any) -> Any:
    """Return a part (UserError: a class, or a trigger or query without ``needs`` or ``__call__``)."""
    if isinstance(part, type):
        raise UserError(f"{option}={part.__name__} is a class: give an object of it, {part.__name__}(..)")
    if option != "passages" and not (callable(part) and isinstance(getattr(part, "needs", None), Needs)):
        message = f"{option}={part!r:.80} is no {option}: give a name, or an object"
        raise UserError(f"{message} that can be called and has needs, such as needs = Needs()")
    return part


def decide(trigger: Trigger, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
    """Decide on every generation (UserError: no Decision; RunError: NaN, which would pass for "certain")."""
    return _checked(trigger, trigger.decide(generations, states), states, Decision)


def decide_before(trigger: Trigger, states: Sequence[State]) -> Sequence[Decision | None]:
    """Ask a trigger with ``before`` about every question; refuse a NaN like :func:`decide`."""
    return _checked(trigger, trigger.decide_before(states), states, Decision | None)


def _checked(trigger: Trigger, decisions: Any, states: Sequence[State], kind: Any) -> Any:
    for decision, state in zip(decisions, states, strict=True):
        if not isinstance(decision, kind):
            message = f"trigger={trigger.name} returned {decision!r:.80}, which is no Decision"
            raise UserError(f"{message}: return Decision(fire, score, threshold)", "own-class")
        if decision and any(map(math.isnan, (decision.score, *decision.token_scores))):
            message = f"trigger={trigger.name} gave NaN on question {state.question.id!r}"
            raise RunError(f"{message}: the model's states or logits are broken there", "model")
    return decisions


def reads_states(part: Any) -> bool:
    """Tell whether a trigger or query reads hidden states."""
    return bool(getattr(part, "reads_states", part.needs.features))


def uncounted(trigger: Any, retriever: Any) -> str | None:
    """Say why a trigger cannot be used with a retriever, as part of a sentence, or None.

    Both are objects or their classes. A function that makes a retriever passes, as its class is unknown.
    """
    kind = retriever if isinstance(retriever, type) else type(retriever)
    counts = issubclass(kind, Counts) or isinstance(retriever, FunctionType)
    if counts or not getattr(trigger, "counts", False):
        return None
    needed = f"trigger={name_of(trigger)} counts words in the retriever's index"
    return f"{needed}, and retriever={name_of(kind)} has none that counts"


def check_counts(trigger: Trigger, retriever: Any) -> None:
    """Refuse a retriever, or class of one, that has no counts for a trigger that needs them (UserError)."""
    if why := uncounted(trigger, retriever):
        remedy = "choose retriever=bm25, rank_bm25, elasticsearch or opensearch"
        raise UserError(f"{why}: {remedy}", "unsupported")


def attends(part: Any) -> bool:
    """Tell whether a trigger or query reads attention."""
    return bool(part.needs.attention or getattr(part, "attends_alone", False))


def filter_of(trigger: Trigger, query: Any) -> str | None:
    """Name the content-word filter (:func:`probers.words.text.content_filter`); None if neither uses one."""
    return content_filter() if trigger.filters or getattr(query, "filters", False) else None


def name_of(part: object) -> str:
    """Name a trigger or query, or a class of them, as configurations write it."""
    name = (part if isinstance(part, type) else type(part)).__name__
    # A run of capitals is one word.
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix("Query") or name).lower()


#: Score of an answer without tokens: finite, and above any threshold that a method would use.
UNANSWERED = 1e4


def verdict(score: float, threshold: float, *, token_scores: Iterable[float] = (), **where: Any) -> Decision:
    """Make the decision that follows from a score, which fires above the threshold."""
    shown = tuple(map(float, token_scores))
    return Decision(fire=score > threshold, score=score, threshold=threshold, token_scores=shown, **where)


def ruled(fire: bool, score: float = 1.0, **where: Any) -> Decision:
    """Make the decision of a rule that does not look at the text: its score stays, the threshold moves."""
    return Decision(fire=fire, score=score, threshold=0.0 if fire else max(score, 0.0), **where)


def one_of(option: str, value: str, *choices: str) -> None:
    """Refuse a value that is none of an option's choices; messages call the option ``option``."""
    if value not in choices:
        raise UserError(f"{option}={value!r} is unknown: choose {' or '.join(choices)}", "unknown-choice")


def has_places(option: str, form: str, *names: str) -> None:
    """Refuse a form for a prompt that lacks a place such as ``{question}``."""
    if missing := [name for name in names if f"{{{name}}}" not in form]:
        raise UserError(f"{option}={form[:40]!r} has no {{{missing[0]}}}: put it in")


def at_least(option: str, value: float, least: float = 1) -> None:
    """Refuse a value that is not a finite number from ``least`` on, and whole if ``least`` is an ``int``."""
    whole = isinstance(least, int)
    if not (isinstance(value, Integral if whole else Real) and least <= value < math.inf):
        raise UserError(f"{option}={value!r} must be a {'whole ' * whole}number of {least:g} or more")
