"""Inputs of commands: model, passages, questions, matcher, and the probers of other runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ..files import canonical_json, read_json
from ..progress import warn_once
from ..prompts import AS_GIVEN, MESSAGES, PromptTemplate, form_name
from ..types import OF_PASSAGES, Passage, UserError
from .components import Component, choices
from .runs import RunFolder, read_state
from .settings import TESTBED, plain

if TYPE_CHECKING:
    from ..data.questions import QuestionSource
    from ..model.causal_lm import CausalLM
    from ..words import EntityMatcher

log = logging.getLogger(__name__)

#: The last loaded model, by its options; None if none stays.
_models: dict[str, CausalLM] | None = None
#: Keys of a run for the number format that the processor chose, and the date in its chats.
_DTYPE, _DATE = "model.dtype", "model.chat_date"


def load_model(
    settings: Any, folder: RunFolder | None = None, *, engine: str = "transformers",
    adapter: Path | None = None,
) -> CausalLM:  # fmt: skip
    """Load ``settings.model``, by default with the ``adapter`` of its prober.

    The run in ``folder`` keeps its first number format and date.
    """
    from ..model.causal_lm import CausalLM
    from ..model.vllm.lm import VllmLM

    dtype = None if folder is None else folder.chosen.get(_DTYPE)
    if dtype is not None:
        log.warning("%s=%s, the number format that this run began with", _DTYPE, dtype)
    day = settings.model.chat_date
    if folder is not None:
        day = _begun_on(folder) or day or date.today().isoformat()
    options = plain(settings.model) | {
        "dtype": dtype or settings.model.dtype, "batch_size": settings.batch_size, "chat_date": day,
        "adapter": settings.model.adapter or (adapter and str(adapter)),
    }  # fmt: skip
    lm = _loaded(VllmLM if engine == "vllm" else CausalLM, options)
    if folder is None:
        return lm
    if settings.model.dtype == "auto" and dtype is None:
        folder.choose(_DTYPE, lm.spec.dtype)
    if (day := getattr(lm.tokenizer, "chat_date", None)) is not None and _DATE not in folder.chosen:
        folder.choose(_DATE, day)
    # A resumed run goes on with the same model, and merging compares those at the start of the parts.
    spec = lm.spec
    now = {"model": str(spec), "chat template": spec.template, "end tokens": spec.ends, "tokens": spec.tokens}
    for what, value in now.items():
        if (begun := folder.chosen.get(what, value)) != value:
            problem = f"{folder.path} was begun with another {what}: {begun}, not {value}: give that model"
            raise UserError(f"{problem} (model.revision on the Hub), or overwrite=true", "mismatch")
        folder.choose(what, value)
    return lm


def _begun_on(folder: RunFolder) -> str | None:
    """Return the date in a run's prompts, for a part also that of other parts; None if there is none yet."""
    others = folder.path.parent.iterdir() if folder.config.get("part") is not None else ()
    dates = ((read_state(path) or {}).get("chosen", {}).get(_DATE) for path in (folder.path, *others))
    return next(filter(None, dates), None)


def keep_model() -> None:
    """Make :func:`load_model` return the last model again when its options are the same."""
    global _models
    _models = _models or {}


def _loaded(kind: type[CausalLM], options: dict[str, Any]) -> CausalLM:
    if _models is None:
        return kind.from_pretrained(**options)
    key = canonical_json([kind.__name__, options])
    if key in _models:
        _models[key].forget()
    else:
        _models.clear()  # frees its memory before the next one is loaded
        _models[key] = kind.from_pretrained(**options)
    return _models[key]


def load_passages(settings: Any) -> Sequence[Passage]:
    """Open the passages of ``settings.corpus``; passages of large files are read on demand.

    There are none with ``retriever.existing``, whose passages are in the index.
    """
    from ..data import load_corpus

    if settings.retriever.get("existing"):
        if settings.corpus not in (None, TESTBED):
            message = f"corpus={settings.corpus} and retriever.existing=true, which searches an index"
            raise UserError(f"{message} as it is: leave one out", "conflict")
        return []
    return load_corpus(
        settings.corpus, on_bad_line=settings.on_bad_line, passage_words=settings.passage_words,
        cache=settings.corpus_cache,
    )  # fmt: skip


def load_matcher(settings: Any) -> EntityMatcher:
    """Make the matcher of answers, with word vectors if a file of them is given."""
    from ..words import EntityMatcher

    options = settings.matcher.options
    if options["vectors"] == "own":
        problem = "matcher.vectors=own needs the articles of --source wiki"
        raise UserError(f"{problem}: give a file, or auto for none", "conflict")
    return EntityMatcher(**options | ({"vectors": ""} if options["vectors"] == "auto" else {}))


def wordnet_found(settings: Any) -> dict[str, bool]:
    """Tell whether the matcher finds and uses WordNet: a store must not mix labels with and without it."""
    from ..words.wordnet import find_wordnet

    auto = settings.matcher.options["wordnet"] == "auto"
    return {"wordnet_found": find_wordnet() is not None} if auto else {}


def question_source(settings: Any) -> QuestionSource:
    """Make the source of questions; log a note if they are made for another prompt."""
    source: QuestionSource = settings.questions.make()
    if source.prompt not in (None, prompt := settings.prompt.name):
        note = "note: questions=%s are made for prompt=%s, but the prompt is %s"
        log.info(note, source.name, source.prompt, prompt)
    from ..data.questions.completion import Completion

    if isinstance(source, Completion) and source.known is not None:
        from .known import known_share

        source = known_share(source, getattr(settings, "seed", 0))
    return source


def prompt_files(settings: Any) -> tuple[str, ...]:
    """List the files that the prompt reads; they must be readable."""
    settings.prompt.make()
    file = settings.prompt.get("exemplars_file")
    return () if file is None else (str(file),)


#: Probers score whole generated answers, single tokens, entities before they are written, or prompts.
ProberKind = Literal["answers", "tokens", "entities", "prompts", "grounding", "helps", "helps_before"]

#: Trained parts: probers, and classifiers of questions.
TrainedKind = ProberKind | Literal["questions"]

#: By kind: its trigger, its description, the commands that make one, and the option that names it.
_TRAINED: dict[TrainedKind, tuple[str, str, str, str, str]] = {
    "answers": ("probing", "prober of whole answers", "--source cot", "layer=all", "prober=PATH"),
    "tokens": ("radio", "prober of single tokens", "--source wiki pool=tokens", "head=radio", "prober=PATH"),
    "entities": (
        "before_entity", "prober of entities before they are written", "--source wiki pool=predicting",
        "layer=all", "prober=PATH",
    ),
    "prompts": (
        "probing_before", "prober of the state before an answer", "--source cot pool=prompt", "layer=all",
        "prober=PATH",
    ),
    "grounding": (
        "ungrounded", "prober of what answers take from passages",
        "--source grounded site=[resid_diff,passages]",
        "head=concat site=resid_diff beside=[passages]", "prober=PATH",
    ),
    "helps": (
        "helps", "prober of drafts that a retrieval turns right", "--source cot", "label=helps",
        "helps_prober=PATH",
    ),
    "helps_before": (
        "helps_before", "prober of questions that a retrieval turns right", "--source cot pool=prompt",
        "label=helps", "helps_prompt_prober=PATH",
    ),
    "questions": (
        "adaptive", "classifier of questions", "--source cot", "head=adaptive",
        "its folder, or a sequence classifier of transformers, as trigger.classifier",
    ),
}  # fmt: skip


def find_prober(settings: Any, *kinds: ProberKind, asks: str | None = None, level: int = logging.INFO) -> str:
    """Find the prober that the settings name, else the newest for their model, else the shipped one.

    The preferred kind comes first in ``kinds``; none means "answers". Without a prober the UserError names
    the commands that make one, and the command that ``asks`` or the kind's trigger.
    """
    if settings.prober is not None:
        log.log(level, "prober: %s", settings.prober)
        return str(settings.prober)
    from ..prober.io import shipped

    model = settings.model.name
    kinds = kinds or ("answers",)
    for kind in kinds:
        if (folder := newest_prober(kind, model=model)) is not None:
            units = _TRAINED[kind][1].removeprefix("prober ")
            log.log(level, "prober: %s (the newest %s for model=%s)", folder, units, model)
            return str(folder)
    for name, scoring, units in (
        (f"{model}-grounding", {"grounding"}, "sentences that passages support or not"),
        (model, {"answers", "tokens"}, "the tokens of entities in articles"),
    ):
        if scoring.intersection(kinds) and (prober := shipped(name)) is not None:
            log.log(level, "prober: %s (comes with probers; of %s)", prober, units)
            return prober
    _none(model, kinds[0], asks)


def find_classifier(settings: Any) -> str:
    """Find the newest classifier of questions for the settings' model; errors as in :func:`find_prober`."""
    model = settings.model.name
    folder = newest_classifier(model=model) or _none(model, "questions")
    log.info("classifier: %s (the newest for model=%s)", folder, model)
    return str(folder)


def _none(model: str, kind: TrainedKind, asks: str | None = None) -> NoReturn:
    trigger, what, *_, given = _TRAINED[kind]
    problem = f"{asks or f'trigger={trigger}'} needs a {what} for model={model} and there is none under runs/"
    raise UserError(f"{problem}: {how_to_make(kind, 'one')}, or pass {given}", "no-artifact")


def how_to_make(kind: TrainedKind, what: str = "") -> str:
    """Tell the commands that make a trained part, by its description or ``what``, as part of a sentence."""
    _, description, data, training, _ = _TRAINED[kind]
    return f"make {what or f'a {description}'} with 'probers-datagen {data}' and 'probers-train {training}'"


def newest_prober(kind: ProberKind, *, model: str, root: Path = Path("runs")) -> Path | None:
    """Find the newest complete prober of a model that scores units of a kind."""

    def fits(folder: Path, _: Mapping[str, Any]) -> bool:
        config = _config(folder)
        if not isinstance(spec := config.get("spec"), dict):
            return False
        pool, position = spec.get("pool"), spec.get("position")
        if (config.get("label") == "helps") != kind.startswith("helps"):
            return False
        beside = spec["beside"] if isinstance(spec.get("beside"), list) else []
        kinds = [each.get("kind") for each in beside if isinstance(each, dict)]
        of_passages = any(site in OF_PASSAGES for site in (spec.get("site"), *kinds))
        if kind == "grounding" or of_passages:
            return kind == "grounding" and of_passages
        if kind == "tokens":  # heads that pool a text's tokens themselves need no aggregation
            return pool == "tokens" and config.get("aggregate") is not None
        if kind in ("answers", "helps"):
            return position == "generated" and pool not in ("tokens", "predicting", "prompt")
        wanted = ("entity", "predicting") if kind == "entities" else ("generated", "prompt")
        return (position, pool) == wanted

    return newest_run(("train", "search"), fits, model=model, root=root)


def newest_classifier(*, model: str) -> Path | None:
    """Find the newest complete classifier of questions trained on answers of a model."""
    return newest_run(
        ("train",), lambda folder, _: _config(folder).get("format") == "probers-adaptive", model=model
    )


def newest_store(source: str | None = None, *, root: Path = Path("runs")) -> Path | None:
    """Find the newest complete feature store, of a source ("cot", "wiki") or of any."""
    return newest_run(("datagen",), lambda _, summary: source in (None, summary.get("source")), root=root)


def newest_run(
    commands: Sequence[str],
    fits: Callable[[Path, Mapping[str, Any]], bool] = lambda folder, summary: True, *,
    model: str | None = None, root: Path = Path("runs"),
) -> Path | None:  # fmt: skip
    """Find the newest complete run of some commands below ``root`` whose folder and summary fit.

    Parts of split runs do not count, nor runs with another model than ``model``.
    """
    runs = []
    for file in root.glob("**/run.json"):
        try:
            state, written = read_state(file.parent), file.stat().st_mtime
        except (UserError, OSError) as error:
            log.warning("note: %s", error)
            continue
        if not state or not state["complete"] or "part" in state["identity"]:
            continue
        summary = state["summary"]
        wanted = state["command"] in commands and model in (None, summary.get("model"))
        if wanted and fits(file.parent, summary):
            runs.append((written, file.parent))
    return max(runs)[1] if runs else None


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def check_form(trained: str, prompt: PromptTemplate) -> None:
    """Refuse a prompt other than that of a prober's training, given by its fingerprint (UserError).

    Prompts of existing texts follow no template; what is known to differ from them is told, once.
    """
    if trained in (AS_GIVEN, MESSAGES):
        through = "through the model's chat template" if prompt.chat else "without a chat template"
        warn_once(
            f"the prober was trained on {form_name(trained)}, and this loop asks by prompt={prompt.name}, "
            f"{through}: its scores hold as far as both look alike"
        )
    elif trained != prompt.fingerprint:
        named = ((name, Component.of("prompt", name).make()) for name in choices("prompt"))
        name = next((name for name, form in named if form.fingerprint == trained), None)
        form = f"prompt={name}" if name else "a prompt that is none of the package's"
        now = f"prompt={prompt.name}" + (" with other options" if name == prompt.name else "")
        fix = f"give {form}" if name and name != prompt.name else "give the prompt options of its labels"
        message = f"the prober was trained on answers to {form}, but the loop asks by {now}"
        raise UserError(f"{message}: {fix}, or make labels and prober again with {now}", "mismatch")
