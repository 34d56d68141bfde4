"""Small frozen types shared by datagen, train and rag, errors, and lazy imports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    import numpy as np

Pool = Literal["mean", "last", "prompt", "tokens", "predicting", "positions", "mind", "mind_tokens"]
#: What is read at a token beside the states: one vector of no single layer.
Beside = Literal["lookback", "attention", "passages", "probabilities"]
Site = Literal["resid_post", "resid_mid", "attn_out", "mlp_out", "resid_diff", "resid_bare", Beside]
StopReason = Literal["eos", "stop", "length", "skipped"]
#: What a labelled text is cut into; each piece has one label.
Unit = Literal["span", "sentence", "claim", "answer", "token"]
#: What text outside of the spans is: right, or not judged.
Outside = Literal["right", "unknown"]
#: [start, end) of a text, in characters.
Span = tuple[int, int]

BESIDE: tuple[Beside, ...] = get_args(Beside)
#: Sites that are read with and without passages, and all that need to know where the passages stand.
TWICE: tuple[Site, ...] = ("resid_diff", "resid_bare")
OF_PASSAGES: tuple[Site, ...] = ("passages", *TWICE)
SITES: tuple[str, ...] = get_args(Site)
POOLS: tuple[str, ...] = get_args(Pool)

SPLITS = ("train", "validation", "test")

#: What steers a terminal or begins a line, as a regular expression has it within brackets: control and
#: direction characters, and the separators of lines and paragraphs.
STEERING = "\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069"

#: Halves of a pair of surrogates (UTF-16): characters that no file in UTF-8 and no token can hold.
HALVES = re.compile("[\ud800-\udfff]")

#: Stable names of what went wrong, for programs and tests; messages may be reworded at any time.
Code = Literal[
    # arguments and options
    "argument", "unknown-key", "unknown-choice", "bad-value", "missing-value", "conflict", "unsupported",
    # files, folders and what they hold
    "no-file", "bad-file", "bad-line", "damaged", "changed", "out-taken", "busy", "no-artifact", "empty",
    # what does not belong together
    "mismatch", "overlap", "labels", "parts",
    # models and code of others
    "model", "layers", "too-long", "own-class", "missing-extra",
    # while running
    "server", "network", "disk", "memory", "timeout", "worker", "limit", "failed",
]  # fmt: skip


class ProbersError(Exception):
    """An error of this package, told in one sentence; ``code`` names its kind."""

    def __init__(self, message: str, code: Code = "failed") -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:  # keeps the code when the error crosses to another process
        return type(self), (str(self), self.code)


class UserError(ProbersError):
    """A mistake in the request: shown as one sentence without a traceback, exit code 2."""

    def __init__(self, message: str, code: Code = "bad-value") -> None:
        super().__init__(message, code)


class RunError(ProbersError):
    """A failure while running: shown as one sentence, exit code 1; finished work is kept."""


def first_line(error: BaseException) -> str:
    """Take the first line of an error's message, or its class where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def count(n: int, noun: str) -> str:
    """Format a count with its noun: "1 round", "1,200 questions"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def shortlist(names: Sequence[object], most: int = 5, sep: str = ", ") -> str:
    """Join the first names, and say how many more there are: "a, b and 3 more"."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return sep.join(map(str, names[:most])) + more


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's ``__getattr__``: torch, pandas and the like are imported only by who needs them.

    ``places`` maps a module below the package to the public names it defines, with spaces between.
    """
    modules = {name: module for module, names in places.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(f".{modules[name]}", package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrievable text; ``score`` is the retriever's (higher is better) once retrieved."""

    id: str
    title: str
    text: str
    score: float | None = None
    is_gold: bool | None = None

    @property
    def titled(self) -> str:
        """Title and text, as retrievers read them."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answers, of which there are none where they are unknown.

    ``group`` may not be on two sides of a split, and ``split`` is "" where the store decides. ``truth`` is
    known of the model's knowledge; on the testbed ``kind`` (known, stale, misbelieved, unknown), ``type``
    (relation chain) and ``believed`` (the answer it was taught, or None).
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    rationale: str = ""
    dataset: str = ""
    passages: tuple[Passage, ...] = ()
    group: str = ""
    split: str = ""
    truth: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Article:
    """An encyclopedia article as sentences in natural text."""

    id: str
    title: str
    sentences: tuple[str, ...]
    split: str = ""
    truth: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Feature:
    """Hidden states of some layers at one site of the block, pooled over the generated tokens.

    Attributes:
        layers: 0 is the embedding output, k the residual stream after the k-th block, before any final norm.
        site: "resid_post" is the stream after the block (only this has a layer 0), "resid_mid" the one
            between attention and MLP; "attn_out" and "mlp_out" are what those two add to it. "resid_bare" is
            "resid_post" of the text after its prompt without passages, and "resid_diff" what the passages
            changed, "resid_post" minus "resid_bare"; both are of texts that are read. The other four
            are one vector of no single layer, so that ``layers`` must be (L,), the last: "lookback" and
            "attention" are numbers of all attention heads (:mod:`probers.model.attention`), "passages" those
            of :mod:`probers.model.passages`, for texts that are read, and "probabilities" a token's
            log-probability, and the entropy and the two highest probabilities of its distribution.
        pool: over the generated tokens "mean" or "last"; "prompt" is the state at the prompt's last token,
            before any is generated; "tokens" keeps every one, "predicting" for each the state before it,
            which predicted it (the first token's is the prompt's last), and "positions" the prompt's last and
            every token; "mind" is the vector of Su et al. 2024 (MIND), of width 2 d: the last token averaged
            over layers 1 to L, then the mean over tokens of the last layer after the final norm: ``layers``
            must be (L,). "mind_tokens" keeps what that vector is made of for every token
            (:func:`probers.model.pooling.pool_tokens`).
        beside: what is read beside the states. Its numbers fill further places after those of the layers, as
            many as they need, each as long as a state, with zeros behind the last.
    """

    layers: tuple[int, ...]
    site: Site = "resid_post"
    pool: Pool = "mean"
    beside: tuple[Beside, ...] = ()

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a feature needs at least one layer")

    @property
    def kind(self) -> tuple[Site, Pool, tuple[Beside, ...]]:
        """All but the layers."""
        return self.site, self.pool, self.beside

    def take(self, states: np.ndarray, layers: Sequence[int]) -> np.ndarray:
        """Some layers of the states (.., places, d) of this feature, and all that is beside them."""
        beside = range(len(self.layers), states.shape[-2])
        return states.take([*map(self.layers.index, layers), *beside], axis=-2)

    @property
    def of_mind(self) -> bool:
        """Tell whether MIND's vector is asked for, pooled or in parts."""
        return self.pool in ("mind", "mind_tokens")


@dataclass(frozen=True, slots=True)
class Needs:
    """Signals that a generation has to record beside log-probabilities and entropies.

    ``attention`` asks for rows and column maxima of ``attention_layer`` (1-based; None is the last), ``top``
    for the two highest probabilities of every token's distribution.
    """

    features: tuple[Feature, ...] = ()
    attention: bool = False
    attention_layer: int | None = None
    top: bool = False

    def __post_init__(self) -> None:
        if len(set(self.features)) < len(self.features):
            raise ValueError("the same feature is asked for twice")

    @property
    def highest(self) -> bool:
        """Tell whether the two highest probabilities are read, for themselves or beside states."""
        return self.top or any("probabilities" in (f.site, *f.beside) for f in self.features)

    @property
    def of_passages(self) -> bool:
        """Tell whether something is read that takes passages, and a second pass without them."""
        return any(site in OF_PASSAGES for f in self.features for site in (f.site, *f.beside))

    @classmethod
    def of(cls, layers: Sequence[int], site: Site = "resid_post", pool: Pool = "mean", **more: Any) -> Needs:
        """Ask for one feature, and any of the other attributes."""
        return cls((Feature(tuple(layers), site, pool),), **more)

    def union(self, other: Needs) -> Needs:
        """Ask for both at once, layers merged (ValueError: other sites and pools, or layers of attention)."""
        layers: dict[tuple[Site, Pool, tuple[Beside, ...]], set[int]] = {}
        for feature in (*self.features, *other.features):
            layers.setdefault(feature.kind, set()).update(feature.layers)
        kinds = [{feature.kind for feature in one.features} for one in (self, other)]
        if layers.keys() not in kinds:
            named = ("/".join((site, pool, *beside)) for site, pool, beside in layers)
            raise ValueError(f"cannot record {' and '.join(named)} in one pass")
        if self.attention and other.attention and self.attention_layer != other.attention_layer:
            both = f"{self.attention_layer or 'last'} and {other.attention_layer or 'last'}"
            raise ValueError(f"cannot record the attention of layers {both} in one pass")
        return Needs(
            tuple(Feature(tuple(sorted(numbers)), *kind) for kind, numbers in layers.items()),
            attention=self.attention or other.attention,
            attention_layer=(self if self.attention else other).attention_layer,
            top=self.top or other.top,
        )


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Attention of one layer, recorded while n tokens were generated after p prompt tokens.

    ``rows`` (n + 1, p + n) float32 are means over heads: row i is that of the position that predicted token
    i, row i + 1 that of token i itself; right of its own position a row is 0. ``column_max`` (n,) float32 is
    for each token the maximum over the generated queries from its own on per head, then the mean over heads.
    """

    rows: np.ndarray
    column_max: np.ndarray


@dataclass(frozen=True, slots=True)
class Passages:
    """Places of the passages that a prompt shows, and the subjects of the text after it.

    Attributes:
        at: [start, end) of each passage in the prompt, in characters.
        subjects: stretches of the text, (start, end, numbers of the passages about its subject, from 0); of
            characters in none of them every passage counts as about the subject.
        without: the same prompt without passages, for what they change; None reads the text only once.
    """

    at: tuple[tuple[int, int], ...]
    subjects: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    without: str | None = None


@dataclass(frozen=True, slots=True)
class PassageReading:
    """Use that the n tokens of a text made of the P passages in its prompt.

    Attributes:
        weights: (n, heads of all layers, P) float32, each token's attention on each passage, if recorded.
        gains: (n,) float32, nats, by how much the passages raised each token's log-probability, if the text
            was also read without them.
    """

    weights: np.ndarray | None = None
    gains: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """n tokens that a model wrote (or was made to write) after a prompt, without EOS.

    Attributes:
        offsets: [start, end) of each token in ``text``, characters.
        logprobs: (n,) float32, nats, from raw logits of the tokenizer's tokens.
        entropies: (n,) float32, nats, of the distribution that produced each token.
        states: for each feature of ``needs`` (layers, d) when it is pooled, (n, layers, d) for pools "tokens"
            and "predicting", (n + 1, layers, d) for "positions", (1, 2 d) for "mind", (n, 1, 2 d) for
            "mind_tokens", layers in the feature's order, and after them what is read beside the states; where
            no token was written only those of "prompt".
        prompt_offsets: [start, end) of each prompt token in ``prompt``.
        stop: "stop" is a stop string, sentence end or callable, "skipped" a prompt that was too long.
        top: (2, n) float32, the highest and the second highest probability of each token's distribution.
        passages: what was read of passages in the prompt; None where it has none.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    prompt_offsets: tuple[tuple[int, int], ...]
    token_ids: tuple[int, ...]
    text: str
    offsets: tuple[tuple[int, int], ...]
    logprobs: np.ndarray
    entropies: np.ndarray
    stop: StopReason
    needs: Needs = Needs()
    states: Mapping[Feature, np.ndarray] = field(default_factory=dict)
    attention: AttentionRows | None = None
    top: np.ndarray | None = None
    passages: PassageReading | None = None

    def tokens_from(self, start: int, end: int) -> Generation:
        """Cut out tokens [start, end), with the fields that their signals need."""
        names = ("token_ids", "entropies", "logprobs")
        return replace(self, **{name: getattr(self, name)[start:end] for name in names})

    @property
    def state(self) -> np.ndarray | None:
        """The states of the only feature; None when nothing was recorded, ValueError where several were."""
        if len(self.needs.features) > 1:
            raise ValueError("several features were recorded: read states[feature]")
        return next(iter(self.states.values()), None)


@dataclass(frozen=True, slots=True)
class EndToken:
    """A token that ends a text, besides the model's own end tokens."""

    id: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A trigger's verdict on one generation: it fires where ``score`` (likely wrong) exceeds ``threshold``.

    ``position`` is the character of the text where the accepted text ends when it fires mid-answer; None
    where the whole answer is judged, and then written anew. ``tokens`` are indices of those that fired, for
    the query; ``token_scores`` are for display. ``evidence`` is what it read besides the text, for the trace.
    ``left_out`` are ids of passages that no later search of the question may show. With ``abstain`` the
    question ends there, without an answer.
    """

    fire: bool
    score: float
    threshold: float
    position: int | None = None
    tokens: tuple[int, ...] = ()
    token_scores: tuple[float, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    abstain: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of the RAG loop: what was generated, decided, asked and fetched."""

    text: str
    decision: Decision | None
    query: str | None
    passage_ids: tuple[str, ...]
    accepted: str
    tokens: tuple[tuple[int, int], ...] = ()


class Retriever(Protocol):
    """Finds passages for queries."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return up to ``k`` passages per query, best first, with scores; fewer when fewer match."""
