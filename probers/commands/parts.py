"""From a resolved configuration to what every command needs: its model, its parts, its inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.resolvers.oc import env

from ..files import canonical_json
from ..types import Passage, UserError, first_line
from .components import Component
from .compose import literal
from .settings import Settings
from .settings import plain as plainly

if TYPE_CHECKING:
    from ..data.questions import QuestionSource
    from ..engine.model import CausalLM
    from ..equivalence import EntityMatcher
    from .runs import RunFolder

#: The model that was loaded last, by what it was asked for as; None where none is kept.
_kept: dict[str, CausalLM] | None = None
#: What a run keeps of the model's number format, where the processor was to say.
_DTYPE = "model.dtype"


def load_model(cfg: Any, folder: RunFolder | None = None, *, engine: str = "transformers") -> CausalLM:
    """The model of ``cfg.model``.

    Args:
        folder: the run, which keeps the number format that it began with.
        engine: what runs it, "transformers" or "vllm".
    """
    from ..engine.model import CausalLM
    from ..engine.vllm.lm import VllmLM

    begun = None if folder is None else folder.chosen.get(_DTYPE)
    if begun is not None:
        print(f"{_DTYPE}={begun}, in which this run began", file=sys.stderr)
    options = plain(cfg.model) | {"dtype": begun or cfg.model.dtype, "batch_size": cfg.batch_size}
    lm = _loaded(VllmLM if engine == "vllm" else CausalLM, options)
    if folder is not None and cfg.model.dtype == "auto" and begun is None:
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


def load_passages(cfg: Any) -> Sequence[Passage]:
    """The passages of ``cfg.corpus``; of large files, read when they are asked for."""
    from ..data import load_corpus

    return load_corpus(
        cfg.corpus, on_bad_line=cfg.on_bad_line, passage_words=cfg.passage_words, cache=cfg.corpus_cache
    )


def load_matcher(cfg: Any) -> EntityMatcher:
    """The matcher of answers by ``cfg.matcher``; with vectors where a file of them is named.

    Raises:
        UserError: an option that it refuses, or vectors of the run's own articles.
    """
    from ..equivalence import EntityMatcher

    options = plain(cfg.matcher)
    if options["vectors"] == "own":
        raise UserError(
            "matcher.vectors=own trains them on the articles of --source wiki: to judge answers give a file, "
            "or auto for none"
        )
    return EntityMatcher(**options | ({"vectors": ""} if options["vectors"] == "auto" else {}))


def question_source(cfg: Any) -> QuestionSource:
    """The questions asked for; says so where they were made for another prompt."""
    asked: QuestionSource = build(cfg.questions)
    if asked.prompt is not None and cfg.prompt.name != asked.prompt:
        print(
            f"note: questions={asked.name} are made for prompt={asked.prompt}, and the prompt is "
            f"{cfg.prompt.name}, which asks for something else"
        )
    return asked


def plain_value(value: Any) -> Any:
    """One value of a configuration, lists and mappings as plain containers."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def build(node: Any, *args: Any, **kwargs: Any) -> Any:
    """Instantiate a ``_target_`` node; what is wrong with it is one sentence.

    Raises:
        UserError: an option the part does not have, a target that cannot be imported,
            or what the part itself refuses.
    """
    if isinstance(node, Component):
        return node.make(*args, **kwargs)
    # Only the options go through Hydra: it would take objects that are dataclasses for configurations.
    make = maker(node)
    try:
        return make(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise _cannot_be_made(node, error) from error


def maker(node: Any) -> Callable[..., Any]:
    """The class or function of a ``_target_`` node with its options, not yet called.

    Raises:
        UserError: a target that cannot be imported.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    if OmegaConf.is_missing(node, "_target_"):
        group = str(node._key())
        raise UserError(f"{group}=own needs the class: {group}._target_=my_package.MyClass")
    options = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    try:
        found: Callable[..., Any] = instantiate(_unread(_unread(options)), _partial_=True)
    except InstantiationException as error:
        raise _cannot_be_made(node, error) from error
    return found


def _unread(value: Any) -> Any:
    """Plain values whose texts are read as they are once; Hydra reads references in them twice."""
    if isinstance(value, dict):
        return {key: _unread(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_unread(entry) for entry in value]
    return literal(value) if isinstance(value, str) else value


def _cannot_be_made(node: Any, error: Exception) -> UserError:
    return UserError(f"{node.get('_target_')} cannot be made: {first_line(error.__cause__ or error)}")


def prompt_files(cfg: Any) -> tuple[str, ...]:
    """The files that ``cfg.prompt`` reads.

    Raises:
        UserError: one that is not there or cannot be read.
    """
    build(cfg.prompt)
    file = cfg.prompt.get("exemplars_file")
    return () if file is None else (str(file),)


def plain(cfg: Any) -> dict[str, Any]:
    """The resolved configuration as plain containers."""
    if not OmegaConf.is_config(cfg):
        return dict(cfg.options) if isinstance(cfg, Component) else plainly(cfg)
    found = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(found, dict)
    return {str(k): v for k, v in found.items()}


def record_of(cfg: Any) -> dict[str, Any]:
    """As :func:`plain`, for a file: what is taken from the environment stays ``${oc.env:NAME}``, unread."""
    if isinstance(cfg, Settings):
        return cfg.record

    def unread(*names: Any) -> str:  # a default may be a number
        return f"${{oc.env:{','.join(map(str, names))}}}"

    OmegaConf.register_new_resolver("oc.env", unread, replace=True)
    try:
        return plain(cfg)
    finally:
        OmegaConf.register_new_resolver("oc.env", env, replace=True)
