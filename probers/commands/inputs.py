"""Inputs of commands from their settings: the model, passages, questions and the matcher of answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from ..files import canonical_json
from ..types import Passage, UserError
from .runs import read_state
from .settings import plain

if TYPE_CHECKING:
    from ..data.questions import QuestionSource
    from ..engine.model import CausalLM
    from ..equivalence import EntityMatcher
    from .runs import RunFolder

log = logging.getLogger(__name__)

#: The model that was loaded last, by its options; None if none is kept.
_kept: dict[str, CausalLM] | None = None
#: Key under which a run keeps the number format that the processor chose.
_DTYPE = "model.dtype"
#: Key under which a run keeps the day that its chat template says.
_DATE = "model.chat_date"


def load_model(settings: Any, folder: RunFolder | None = None, *, engine: str = "transformers") -> CausalLM:
    """Load the model of ``settings.model``.

    Args:
        settings: those of the command.
        folder: the run, which keeps the number format that it began with.
        engine: "transformers" or "vllm".
    """
    from ..engine.model import CausalLM
    from ..engine.vllm.lm import VllmLM

    begun = None if folder is None else folder.chosen.get(_DTYPE)
    if begun is not None:
        log.warning("%s=%s, the number format that this run began with", _DTYPE, begun)
    day = settings.model.chat_date
    if folder is not None:
        day = _begun_on(folder) or day or date.today().isoformat()
    options = plain(settings.model) | {
        "dtype": begun or settings.model.dtype, "batch_size": settings.batch_size, "chat_date": day,
    }  # fmt: skip
    lm = _loaded(VllmLM if engine == "vllm" else CausalLM, options)
    if folder is not None and settings.model.dtype == "auto" and begun is None:
        folder.choose(_DTYPE, lm.spec.dtype)
    said = getattr(lm.tokenizer, "chat_date", None)
    if folder is not None and said is not None and _DATE not in folder.chosen:
        folder.choose(_DATE, said)
    if folder is not None and folder.config.get("part") is not None:
        _check_weights(lm, folder)
    return lm


def _begun_on(folder: RunFolder) -> str | None:
    """The day that a run's prompts say, of a part also that of the other parts; None before they say one."""
    others = folder.path.parent.iterdir() if folder.config.get("part") is not None else ()
    found = ((read_state(path) or {}).get("chosen", {}).get(_DATE) for path in (folder.path, *others))
    return next(filter(None, found), None)


def keep_model() -> None:
    """Make :func:`load_model` return the last model again when its options are the same."""
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
    """Record the weights that a part began with, which merging compares; refuse others."""
    now = str(lm.spec)
    begun = folder.chosen.get("model", now)
    if begun != now:
        raise UserError(
            f"{folder.path} was begun with the model {begun}, but the model is now {now}: give "
            "model.revision, or overwrite=true",
            "mismatch",
        )
    folder.choose("model", begun)


def load_passages(settings: Any) -> Sequence[Passage]:
    """Open the passages of ``settings.corpus``; those of large files are read on demand."""
    from ..data import load_corpus

    return load_corpus(
        settings.corpus,
        on_bad_line=settings.on_bad_line,
        passage_words=settings.passage_words,
        cache=settings.corpus_cache,
    )


def load_matcher(settings: Any) -> EntityMatcher:
    """Make the matcher of answers; it has word vectors if a file of them is given.

    Raises:
        UserError: an option that the matcher refuses, or ``matcher.vectors=own``.
    """
    from ..equivalence import EntityMatcher

    options = settings.matcher.options
    if options["vectors"] == "own":
        raise UserError(
            "matcher.vectors=own needs the articles of --source wiki: to judge answers give a file, or "
            "auto for none",
            "conflict",
        )
    return EntityMatcher(**options | ({"vectors": ""} if options["vectors"] == "auto" else {}))


def question_source(settings: Any) -> QuestionSource:
    """Make the source of questions; note if its questions are made for another prompt."""
    asked: QuestionSource = settings.questions.make()
    if asked.prompt is not None and settings.prompt.name != asked.prompt:
        log.info(
            "note: questions=%s are made for prompt=%s, but the prompt is %s",
            asked.name, asked.prompt, settings.prompt.name,
        )  # fmt: skip
    return asked


def prompt_files(settings: Any) -> tuple[str, ...]:
    """List the files that the prompt reads.

    Raises:
        UserError: a file that is not there or cannot be read.
    """
    settings.prompt.make()
    file = settings.prompt.get("exemplars_file")
    return () if file is None else (str(file),)
