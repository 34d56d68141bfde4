"""Blocks of keys within a command's configuration, as model and matcher: what each key may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ..options import Name, Natural, NotNegative, Positive

Device = Annotated[
    str,
    Field(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$", description="auto, cpu, cuda or cuda:<number>"),
]
#: ``file`` as it is given for articles, corpora and stores, or several of them.
Names = Name | list[Name]
Verdict = Literal["equivalent", "different", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """The block ``model``."""

    name: Name
    revision: Name | None
    gguf: Name | None
    cache: Name
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    device: Device
    device_map: Name | Mapping[str, int | str] | None
    quantization: Mapping[str, Any] | None
    on_too_long: Literal["error", "skip", "truncate_left"]
    attn: Name | None
    trust_remote_code: bool
    use_safetensors: bool


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """The block ``matcher``; its fields are those of the matcher of mentions."""

    partial: Verdict
    family: Verdict
    related: Verdict
    whole: Verdict
    stages: list[Literal["date", "number", "string", "alias", "acronym", "name", "wordnet", "vectors"]]
    aliases: str
    wordnet: str
    vectors: str
    same_cosine: Annotated[float, Field(ge=-1, le=1)]
    different_cosine: Annotated[float, Field(ge=-1, le=1)]
    unknown: Verdict
    unit_tolerance: NotNegative


@dataclass(frozen=True, kw_only=True)
class Wikipedia:
    """The block ``wikipedia``."""

    titles: Names | None
    category: Name | None
    depth: Natural
    random: bool
    language: Name
    contact: Name | None
    cache: Name
    rate: Positive
    retries: Natural
    backoff: NotNegative
    max_wait: NotNegative
    timeout: Positive
    api_url: Name | None


@dataclass(frozen=True, kw_only=True)
class DemoModel:
    """The block ``model`` of the demo."""

    name: Name
