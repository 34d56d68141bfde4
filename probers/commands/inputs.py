"""Inputs of commands from their settings: the model, passages, questions and the matcher of answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..files import canonical_json
from ..types import Passage, UserError
from .settings import plain

if TYPE_CHECKING:
    from ..data.questions import QuestionSource
    from ..engine.model import CausalLM
    from ..equivalence import EntityMatcher
    from .runs import RunFolder

#: The model that was loaded last, by what it was asked for as; None where none is kept.
_kept: dict[str, CausalLM] | None = None
#: What a run keeps of the model's number format, where the processor was to say.
_DTYPE = "model.dtype"


def load_model(settings: Any, folder: RunFolder | None = None, *, engine: str = "transformers") -> CausalLM:
    """The model of ``settings.model``.

    Args:
        folder: the run, which keeps the number format that it began with.
        engine: what runs it, "transformers" or "vllm".
    """
    from ..engine.model import CausalLM
    from ..engine.vllm.lm import VllmLM

    begun = None if folder is None else folder.chosen.get(_DTYPE)
    if begun is not None:
        print(f"{_DTYPE}={begun}, in which this run began", file=sys.stderr)
    options = plain(settings.model) | {
        "dtype": begun or settings.model.dtype,
        "batch_size": settings.batch_size,
    }
    lm = _loaded(VllmLM if engine == "vllm" else CausalLM, options)
    if folder is not None and settings.model.dtype == "auto" and begun is None:
        folder.choose(_DTYPE, lm.spec.dtype)
    if folder is not None and folder.config.get("part") is not None:
        _check_weights(lm, folder)
    return lm


def keep_model() -> None:
    """Have :func:`load_model` hand out the model that it loaded last where the same is asked for again."""
    global _kept
    _kept = {}


def _loaded(kind: type[CausalLM], options: dict[str, Any]) -> CausalLM:
    if _kept is None:
        return kind.from_pretrained(**options)
    key = canonical_json([kind.__name__, options])
    if key in _kept:
        _kept[key].forget()
    else:
        _kept.clear()  # its memory is free before the next one is loaded
        _kept[key] = kind.from_pretrained(**options)
    return _kept[key]


def _check_weights(lm: CausalLM, folder: RunFolder) -> None:
    """Keep which weights a part was begun with, and refuse others; merging compares them."""
    now = str(lm.spec)
    begun = folder.chosen.get("model", now)
    if begun != now:
        raise UserError(
            f"{folder.path} was begun with the model {begun}, and the model now is {now}: give "
            "model.revision, or overwrite=true"
        )
    folder.choose("model", begun)


def load_passages(settings: Any) -> Sequence[Passage]:
    """The passages of ``settings.corpus``; of large files, read when they are asked for."""
    from ..data import load_corpus

    return load_corpus(
        settings.corpus,
        on_bad_line=settings.on_bad_line,
        passage_words=settings.passage_words,
        cache=settings.corpus_cache,
    )


def load_matcher(settings: Any) -> EntityMatcher:
    """The matcher of answers by ``settings.matcher``; with vectors where a file of them is named.

    Raises:
        UserError: an option that it refuses, or vectors of the run's own articles.
    """
    from ..equivalence import EntityMatcher

    options = settings.matcher.options
    if options["vectors"] == "own":
        raise UserError(
            "matcher.vectors=own trains them on the articles of --source wiki: to judge answers give a file, "
            "or auto for none"
        )
    return EntityMatcher(**options | ({"vectors": ""} if options["vectors"] == "auto" else {}))


def question_source(settings: Any) -> QuestionSource:
    """The questions asked for; says so where they were made for another prompt."""
    asked: QuestionSource = settings.questions.make()
    if asked.prompt is not None and settings.prompt.name != asked.prompt:
        print(
            f"note: questions={asked.name} are made for prompt={asked.prompt}, and the prompt is "
            f"{settings.prompt.name}, which asks for something else"
        )
    return asked


def prompt_files(settings: Any) -> tuple[str, ...]:
    """The files that ``settings.prompt`` reads.

    Raises:
        UserError: one that is not there or cannot be read.
    """
    settings.prompt.make()
    file = settings.prompt.get("exemplars_file")
    return () if file is None else (str(file),)
