"""The schema of every command: what each key of its configuration may be, checked before anything is read.

A field stands for the key of the same name in the command's file under ``configs``, which has its
default and its meaning; a dataclass of :mod:`.blocks` stands for a block of keys. Parts with a
``_target_`` are held against the parameters of their own class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from omegaconf import OmegaConf
from pydantic import AfterValidator, Field

from ..data.partition import Partition
from ..options import (
    Count,
    Name,
    Natural,
    NotNegative,
    Positive,
    Seed,
    allowed_keys,
    check_options,
    check_part,
    shown,
    text_keys,
)
from ..types import Site, UserError, first_line
from .blocks import DemoModel, Device, Matcher, Model, Names, Wikipedia

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: Blocks that are parts: their ``_target_`` says what they take.
PARTS = ("questions", "prompt", "retriever", "trigger", "query", "head", "launch")
#: Blocks that presets bring for their own references.
_OF_PRESETS = ("published",)

BatchSize = Literal["auto"] | Count
#: Records keep it, so that it holds no secret.
Engine = Annotated[
    str,
    Field(
        pattern=r"^(transformers|vllm|https?://[^\s@?#]+)$",
        description="transformers, vllm, or a URL as http://host:8000/v1 without user, password and query",
    ),
]
Loss = Literal["ce", "double_softmax"]
Balance = Literal["none", "weights", "sampling"]
#: Fewer give no 95% interval.
Resamples = Annotated[int, Field(ge=100)]
_Each = TypeVar("_Each")
Split = Literal["train", "validation", "test"]
#: Pools of stores.
ReadPool = Literal["mean", "last", "mind", "tokens", "predicting"]
Several = Annotated[list[_Each], Field(min_length=1, description="a list of these")]
#: A number for each split named; null is all there are.
PerSplit = Annotated[
    Mapping[Split, Count | None],
    Field(min_length=1, description="one for each split, as {train: 1000, validation: null}"),
]
Quota = Annotated[
    Mapping[Split, Count], Field(min_length=1, description="{train: 1000, ..}, a whole number for each split")
]


def _is_part(text: str) -> str:
    Partition.parse(text)
    return text


Layers = Annotated[str, Field(pattern=r"^(all|\d{1,4}-\d{1,4})$", description="all, a range as 1-20")]
Part = Annotated[
    str,
    AfterValidator(_is_part),
    Field(description="i/n, one of 1/n to n/n such as 2/4, or null for the whole"),
]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What every command has."""

    seed: Seed
    overwrite: bool
    wait: bool


@dataclass(frozen=True, kw_only=True)
class _Reading(_Run):
    """What commands have that ask a model about a corpus."""

    model: Model
    corpus: Name
    passage_words: Count | None
    corpus_cache: Name
    on_bad_line: Literal["error", "skip"]
    batch_size: BatchSize
    k: Count
    max_new_tokens: Count
    matcher: Matcher
    part: Part | None


@dataclass(frozen=True, kw_only=True)
class Datagen(_Reading):
    """``probers-datagen``."""

    engine: Literal["transformers", "vllm"]
    source: Literal["cot", "wiki"]
    out: Name
    limit: Count | PerSplit | None
    articles: Name
    layers: Literal["all", "stride"] | Natural | list[Natural]
    site: Site | Several[Site]
    pool: ReadPool | Several[ReadPool]
    dtype: Literal["float16", "float32", "fp8"]
    label: Name
    acc: Literal["tokens", "substring"]
    per_article: Count
    within: Count | None
    context: Count | None
    recogniser: Name
    negatives: Literal["generated", "untouched"]
    doubtful: Literal["undecided", "compared"]
    balance: bool
    balance_to: Quota | None
    shard_size: Count
    min_sentences: Count
    max_chars: Count
    wikipedia: Wikipedia


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How heads are trained; ``probers-train`` and its settings take these fields.

    Raises:
        UserError: a value that is not allowed.
    """

    epochs: Count = 2
    warmup_epochs: Natural = 1
    checks: Count = 4
    patience: Count | None = None
    batch_size: Count = 12
    lr: Positive = 1e-3
    gamma: Positive = 0.995
    weight_decay: NotNegative = 0.01
    loss: Loss = "ce"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    balance: Balance = "none"
    seed: Seed = 0
    seeds: Count = 1
    device: Device = "auto"
    logger: Literal["none", "csv", "wandb"] = "none"
    save_every: NotNegative = 60.0

    def __post_init__(self) -> None:
        check_options(type(self), vars(self))


@dataclass(frozen=True, kw_only=True)
class Assembling:
    """How heads become one score and a decision; fields and errors as of :class:`Fitting`."""

    combine: Literal["logits", "probabilities", "best", "stacked"] = "logits"
    best_k: Count = 3
    aggregate: Literal["max", "mean", "last"] = "max"
    calibration: Literal["platt", "temperature", "isotonic"] = "platt"
    with_entropy: bool = True
    threshold: Name = "balanced_accuracy"
    domain: Annotated[float, Field(gt=0, lt=1)] | None = 0.05

    def __post_init__(self) -> None:
        check_options(type(self), vars(self))


@dataclass(frozen=True, kw_only=True)
class Train(Fitting, Assembling, _Run):
    """``probers-train``."""

    layer: Layers | Natural | list[Natural]
    data: Names | None
    out: Name | None
    suffix: Name | None
    split: Literal["store"] | tuple[Positive, Positive, Positive]
    pool: ReadPool | None
    site: Site | Several[Site] | None
    train_on: list[str]
    test_on: list[str]
    sizes: list[Count]
    layer_sets: list[Literal["each"] | Natural | list[Natural]]
    learning_curve: bool
    resamples: Resamples
    checksums: bool
    part: Part | None


@dataclass(frozen=True, kw_only=True)
class _Answering(_Reading):
    """What the two commands of the loop share."""

    engine: Engine
    limit: Count | None
    prober: Name | None
    allow_overlap: bool
    allow_other: bool
    max_retrievals: Natural
    answer_tokens: Natural
    draft: Natural


@dataclass(frozen=True, kw_only=True)
class Rag(_Answering):
    """``probers-rag``."""

    question: str | None
    split: Split | None
    out: Name | None


@dataclass(frozen=True, kw_only=True)
class Compare(_Answering):
    """``probers-compare``."""

    out: Name
    split: Literal["test", "all"]
    validation: Count | None
    triggers: list[Name]
    methods: Mapping[str, Mapping[str, Any]]
    queries: list[Name | Mapping[str, Any]] | None
    vary: Mapping[str, Mapping[str, list[Any]]] | None
    match: Name | None
    wrong: Name
    sweep: Natural
    probers: list[Name]
    token_prober: Name | None
    entity_prober: Name | None
    classifier: Name | None
    examples: Natural
    resamples: Resamples
    memory: Natural


@dataclass(frozen=True, kw_only=True)
class Score(_Run):
    """``probers-score``."""

    model: Model
    texts: Name | None
    prober: Name | None
    threshold: float | None
    allow_other: bool
    out: Name | None
    shown: Natural
    on_bad_line: Literal["error", "skip"]
    batch_size: BatchSize


@dataclass(frozen=True, kw_only=True)
class Check:
    """``probers-check``."""

    model: Model
    engine: Name
    prober: Name | None
    prompts: Annotated[list[str], Field(min_length=1, description="a list of texts")]
    max_new_tokens: Count
    tolerance: Positive | None
    allow_other: bool
    batch_size: BatchSize


@dataclass(frozen=True, kw_only=True)
class Demo(_Run):
    """``probers-demo``."""

    out: Name
    model: DemoModel
    articles: Name
    cot: Count | None
    wiki: Count | None
    compare: Count | None
    full: bool
    batch_size: BatchSize


@dataclass(frozen=True, kw_only=True)
class Serve:
    """``probers-serve``."""

    model: Model
    host: Name
    port: Annotated[int, Field(ge=0, le=65535)]
    backend: Literal["transformers", "vllm"]
    print_command: bool
    served_name: Name | None
    api_key: Name | None
    prober: Name | None
    corpus: Name | None
    passage_words: Count | None
    corpus_cache: Name
    k: Count
    max_new_tokens: Count
    max_retrievals: Natural
    answer_tokens: Natural
    rows: Count
    threads: Count | None
    queue: Natural
    max_tokens: Count
    cache_megabytes: NotNegative
    log_requests: bool
    allow_other: bool
    on_bad_line: Literal["error", "skip"]
    batch_size: BatchSize
    seed: Seed


@dataclass(frozen=True, kw_only=True)
class Merge:
    """``probers-merge``."""

    parts: list[Name]
    out: Name | None
    device: Device | None
    overwrite: bool
    wait: bool


SCHEMAS: dict[str, Any] = {
    "demo": Demo, "datagen": Datagen, "train": Train, "rag": Rag, "compare": Compare, "score": Score,
    "serve": Serve, "check": Check, "merge": Merge,
}  # fmt: skip


def check(command: str, config: DictConfig) -> None:
    """Check every value of a resolved configuration.

    Raises:
        UserError: the first that is not allowed; names key, value and what is.
    """
    # Hydra's mark of a value that is still to come; without a class of one's own a part says so itself.
    for key in sorted(OmegaConf.missing_keys(config)):
        if not key.endswith("._target_"):
            raise UserError(f"{key}=??? stands for no value: give one")
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    schema = SCHEMAS[command]
    parts = [group for group in PARTS if group in values]
    check_options(schema, {str(k): v for k, v in values.items()}, also=[*parts, *_OF_PRESETS])
    for group in parts:
        _check_part(group, values[group])


def _check_part(group: str, node: Any) -> None:
    target = node.get("_target_") if isinstance(node, Mapping) else None
    if not isinstance(target, str) or not re.fullmatch(r"\?\?\?|[A-Za-z_]\w*(\.\w+)+", target):
        raise UserError(f"{group}._target_={shown(target)} must be the dotted path of a class or function")
    if not target.startswith("probers."):
        return  # the user's own: what it takes is its own affair
    try:
        part = resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{group}._target_={target} cannot be imported: {first_line(error)}") from error
    check_part(part, {str(k): v for k, v in node.items() if k != "_target_"}, f"{group}.")


def texts(command: str) -> set[str]:
    """Dotted keys whose value is text whatever it looks like."""
    return set(text_keys(SCHEMAS[command]))


def numbers(command: str) -> dict[str, str]:
    """What is allowed for the keys that take a number, by dotted key; for the help."""
    return {key: told for key, told in allowed_keys(SCHEMAS[command]) if "number" in told}
