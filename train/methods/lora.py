"""``probers-train head=lora``: adapters below a head, what they do for it and to the model.

The texts of a store of labelled tokens are read again from their file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from probers.cli.components import Component
from probers.cli.runs import read_state
from probers.cli.settings import Model, TextFile, plain
from probers.data.texts import TextSource
from probers.evaluation.bootstrap import Bootstrap
from probers.evaluation.metrics import auroc
from probers.heads import ProbeHead
from probers.model import adapters
from probers.model.causal_lm import CausalLM
from probers.model.language_model import ScoreRequest, Scoring
from probers.model.pooling import as_stored
from probers.model.tokens import decode, encode_answer, encode_prompts, read_offsets
from probers.options import check_extra
from probers.pages import public_model
from probers.prober.figures import WITHOUT
from probers.prober.io import ADAPTER
from probers.prompts import PromptTemplate
from probers.signals import signals, signals_before, surprise
from probers.store.joined import Stored
from probers.store.spec import ModelSpec
from probers.store.store import FeatureStore
from probers.types import Feature, Generation, Needs, RunError, UserError, count
from probers.words.text import split_sentences

from ..assemble import Trained, assemble
from ..data import Column, Dataset
from ..examples import Examples
from ..heads import Fitted, Task, targets_of
from ..module import Batches, NotFiniteError, Schedule, loader
from ..settings import Fitting, Train
from ..trainer import Loaders, train
from . import Method
from .adapted import AdaptedModel, Lora, LoraModule, StoredText, Texts

log = logging.getLogger(__name__)

#: Where a run of source=judged keeps its texts.
_JUDGED = "judged.jsonl"
#: Test texts that the model continues for the perplexity of its own text, and tokens of each.
_CONTINUED, _LENGTH = 24, 48


class Adapting(Method):
    """The method of head=lora: a linear head on the states, then adapters below it."""

    head = "lora"
    unused = ("matrix", "test", "part", "launch", "sizes", "layer_sets", "beside", "seeds")
    reads_texts = True
    refuse = False
    _lm: CausalLM
    _texts: Sequence[StoredText]

    def settle(self, settings: Train) -> Train:
        """Take the training of the head that the adapters begin with."""
        check_extra("head=lora", "lora", "peft")
        self._options: Lora = settings.head.make()
        self._how, self._notes = settings, list[str]()
        if settings.loss == "double_softmax" or settings.balance != "none":
            given = f"loss={settings.loss} balance={settings.balance}"
            fix = "give loss=ce, span_max or span_max_all, and balance=none"
            raise UserError(f"head=lora cannot be trained with {given}: {fix}", "unsupported")
        linear, epochs = Component.of("head", "linear"), self._options.start_epochs
        return replace(settings, head=linear, epochs=epochs, learning_curve=False)

    def prepare(self, dataset: Dataset, stores: Sequence[Stored]) -> Dataset:
        """Load the model, and keep the examples whose texts it reads in the tokens that it wrote."""
        if len({column.layer for column in dataset.columns if column.layer}) != 1:
            why = "head=lora has one head, on one layer: give layer=K"
            raise UserError(f"layer={self._how.layer}: {why}", "conflict")
        (store, *more) = stores
        if more or not isinstance(store, FeatureStore) or store.spec.site != "resid_post":
            raise UserError("head=lora takes one store, with site=resid_post: give data=STORE", "unsupported")
        source = source_of(store, self._how.texts)
        self._lm, examples = load_model(store, self._how.device), dataset.examples
        self._texts = read_texts(store, examples, source, self._lm.tokenizer)
        read = [number for text in self._texts for number in text.spans]
        rows = {split: numbers[np.isin(numbers, read)] for split, numbers in examples.rows.items()}
        if empty := [split for split, numbers in rows.items() if not len(numbers)]:
            why = f"reads no {empty[0]} text of data={store.path} in the tokens in which it was written"
            raise UserError(f"head=lora {why}: use head=linear", "mismatch")
        if lost := sum(map(len, examples.rows.values())) - len(read):
            message = "left out: the model wrote them in other tokens than it reads them in"
            self._notes.append(f"{count(lost, 'span')} {message}")
        return replace(dataset, examples=replace(examples, rows=rows))

    def plan(self, dataset: Dataset) -> tuple[list[Task], list[str]]:
        tasks, notes = super().plan(dataset)
        return tasks, [*notes, *self._notes]

    def complete(
        self, trained: Trained, fitted: Fitted, dataset: Dataset, out: Path | None
    ) -> tuple[Trained, Dataset]:
        """Train head and adapters from a prober of head=linear.

        Returns the prober with adapters, beside the controls of the one without and that one itself, and the
        examples with states and signals of the adapted model; where no adapters within ``kl_limit`` were
        better, what was given. The adapters are written to ``out``. RunError for a loss that is not finite.
        """
        assert out is not None
        begun, frozen, lm, base = time.perf_counter(), trained, self._lm, self._lm.spec
        how, options, examples = self._how, self._options, dataset.examples
        alone = fitted.select([i for i, task in enumerate(fitted.tasks) if task.is_probe])
        (task,) = alone.tasks
        adapted = AdaptedModel(lm, task.column.layer, options, how.seed)
        weights = examples.loss_weights(how.span_weight, marked=how.loss == "span_max")
        shares = None if weights is None else torch.from_numpy(weights).float()
        targets, split_of = targets_of([task], examples)[:, 0], examples.table["split"].tolist()
        texts = Texts(self._texts, targets, shares, split_of)
        rows, (detector,) = examples.rows["validation"], frozen.layers.values()
        start = float(auroc(examples.wrong[rows], detector.scores[rows]))
        module = _train(adapted, texts, options, alone.head, start, how, out)
        head = module.restore_best()
        size = sum(tensor.numel() for tensor in adapted.tensors.values())
        log.info("adapters of %s parameters: %.0f s", f"{size:,}", time.perf_counter() - begun)
        best = {"without": start, "with": float(module.auroc[0]), "kl": float(module.divergence[0])}
        about: dict[str, Any] = {
            "rank": options.rank, "lambda_kl": options.lambda_kl, "kl_limit": options.kl_limit,
            "parameters": size, "kept": module.improved, "validation": best,
        }  # fmt: skip
        if not module.improved:
            within = "" if options.kl_limit is None else f" within kl_limit={options.kl_limit}"
            note = f"no adapters were better on validation than none{within}: this prober has none"
            return replace(frozen, adapter=about, notes=[*frozen.notes, note]), dataset
        folder = out / ADAPTER
        adapters.save(lm.model, folder, public_model(base.id))
        model = replace(base, revision=base.revision + adapters.mark(adapters.active_digest(lm.model)))
        read = _read_again(lm, self._texts, dataset, task.column, model)
        whole = replace(
            alone, head=head, accuracy=module.accuracy, loss=module.loss_value, auroc=module.auroc,
            steps=module.steps_taken,
        )  # fmt: skip
        trained = assemble(whole, read, how, controls=False)
        plain = replace(frozen.saved, name=WITHOUT, about="head=linear on the model without adapters")
        return replace(
            trained, bank=replace(trained.bank, adapter=folder), controls=[plain, *frozen.controls],
            person=frozen.person, notes=[*frozen.notes, *trained.notes],
            adapter=about | _of_model(adapted, texts, options.tokens, how.resamples, how.seed),
        ), read  # fmt: skip


def _train(
    adapted: AdaptedModel, texts: Texts, options: Lora, head: ProbeHead, start: float, how: Fitting,
    out: Path,
) -> LoraModule:  # fmt: skip
    """Train from a trained head, whose AUROC on validation is ``start``; resumes what ``out`` holds."""
    training, validation, numbers = texts.of("train"), texts.of("validation"), torch.arange(len(texts.texts))
    schedule = Schedule(-(-len(training) // how.batch_size), how.epochs, how.checks)
    begun = head.train().requires_grad_(True)
    module = LoraModule(begun, adapted, texts, how, options, start=start, steps=schedule.steps)

    def data(done: int) -> Loaders:
        batches = Batches(training, how.batch_size, [how.seed], schedule, start=done)
        return loader(numbers, batches), loader(numbers, [validation[None]])

    try:
        train(module, data, schedule, [f"layer {adapted.layer}"], out=out, what=ADAPTER)
    except NotFiniteError as error:
        raise RunError(f"{error}: lower lr or head.lr") from error
    return module


def _read_again(
    lm: CausalLM, texts: Sequence[StoredText], dataset: Dataset, column: Column, model: ModelSpec
) -> Dataset:
    """Make the dataset anew with states of one layer, and signals, of the adapted model ``model``."""
    feature = Feature((column.layer,), column.site, "tokens")
    spec = replace(dataset.specs[column.site].select([column.layer]), model=model)
    kind = torch.float16 if spec.dtype == "float16" else torch.float32
    states = torch.zeros(len(dataset.states), 1, spec.width, dtype=kind)
    table, spans = dataset.examples.table.copy(), dict[int, dict[str, float]]()
    for batch in lm.score_each([text.request for text in texts], Scoring(Needs((feature,), top=True))):
        for place, generation in batch.items():
            text, stored = texts[place], texts[place].rows >= 0
            states[text.rows[stored]] = as_stored(generation.states[feature][stored], spec.dtype).to(kind)
            spans |= {number: _signals(generation, tokens) for number, tokens in text.spans.items()}
    new = pd.DataFrame.from_dict(spans, orient="index")
    known = new.columns.intersection(table.columns)
    table.loc[new.index, known] = new[known]
    examples = replace(dataset.examples, table=table)
    return replace(dataset, examples=examples, states=states, columns=[column], specs={column.site: spec})


def _signals(generation: Generation, tokens: np.ndarray) -> dict[str, float]:
    """Signals of a span, as a store's rows join to."""
    part = replace(
        generation, token_ids=tuple(generation.token_ids[i] for i in tokens),
        logprobs=generation.logprobs[tokens], entropies=generation.entropies[tokens],
    )  # fmt: skip
    whole = surprise(generation.logprobs, generation.entropies)
    return {**signals(part), **signals_before(generation, int(tokens[0])), "surprise": whole}


def _of_model(adapted: AdaptedModel, texts: Texts, most: int, resamples: int, seed: int) -> dict[str, Any]:
    """Measure on test texts what the adapters do to the model: its divergence, and its own text."""
    lm, test = adapted.lm, [texts.texts[i] for i in texts.of("test").tolist()]
    read = list(adapted.read_all(test, most))
    values = np.concatenate([apart for _, apart in read])
    groups = np.repeat([text.group for text, _ in read], [len(apart) for _, apart in read])
    bootstrap = Bootstrap(groups, resamples=resamples, seed=seed)
    lm.skip_too_long()
    answers = [decode(lm.tokenizer, text.ids) for text in test[:_CONTINUED]]
    # In place of an empty prompt, the first sentence of the answer.
    prompts = [
        text.prompt.text or answer[: split_sentences(answer)[0][1]]
        for text, answer in zip(test, answers, strict=False)
    ]
    with adapters.switched_off(lm.model):
        written = [g for g in lm.generate(prompts, max_new_tokens=_LENGTH) if g.token_ids]
        without = _perplexity(lm, written)
    perplexity = {"without": without, "with": _perplexity(lm, written), "texts": len(written)}
    return {**bootstrap.interval(values.astype(float)).figures("kl"), "perplexity": perplexity}


def _perplexity(lm: CausalLM, texts: Sequence[Generation]) -> float:
    scored = lm.score([g.prompt for g in texts], [g.token_ids for g in texts])
    return float(np.exp(-np.concatenate([g.logprobs for g in scored]).mean())) if texts else float("nan")


def load_model(store: FeatureStore, device: str) -> CausalLM:
    """Load the model of a store as it was loaded for the store, on a device (UserError: another one)."""
    defaults = plain(Model())
    named = {key: value for key, value in (store.config.get("model") or {}).items() if key in defaults}
    chosen = (read_state(store.path) or {}).get("chosen", {})
    options = defaults | {"name": store.spec.model.id} | named
    options |= {"dtype": store.spec.model.dtype, "device": device}
    options["chat_date"] = chosen.get("model.chat_date", named.get("chat_date"))
    lm = CausalLM.from_pretrained(**options)
    store.spec.check_model(lm.spec, what=f"data={store.path}")
    return lm


def source_of(store: FeatureStore, given: TextFile) -> TextSource:
    """Find the texts of a store: the file given, or that of its configuration (UserError: none)."""
    if store.spec.pool != "tokens" or store.spec.position != "token":
        fix = "make it with probers-datagen --source texts pool=tokens"
        raise UserError(f"head=lora: data={store.path} has no labelled tokens: {fix}", "mismatch")
    options = plain(given) if given.path is not None else dict(store.config.get("texts") or {})
    if given.path is None and store.config.get("source") == "judged":
        options = {"path": str(store.path / _JUDGED)}
    if (path := options.get("path")) is None or not (path.startswith("hf:") or Path(path).is_file()):
        there = "does not say where they are" if path is None else f"says they are in {path}, which is gone"
        message = f"head=lora reads the texts again, and data={store.path} {there}: give texts=FILE"
        raise UserError(message, "missing-value")
    return TextSource(**options, on_bad_line="skip")


def read_texts(
    store: FeatureStore, examples: Examples, source: TextSource, tokenizer: Any
) -> list[StoredText]:
    """Read the texts of a store's rows, in its order (UserError: one that the file lacks or has otherwise).

    Spans without a split are left out; a text without any is in the list, since its rows need states. A text
    that the model has written in other tokens than those it is read in is not.
    """
    table = store.table()
    tokens, names, starts = (table[name].to_numpy() for name in ("token", "span", "cut_at"))
    first = {name: row for row, name in reversed([*enumerate(names.tolist())])}
    by_name = {}
    for item in source.all():
        name = f"{item.dataset}/{item.id}"
        by_name[name if name in first else item.id] = item
    node = store.config.get("prompt")
    template = Component.read("prompt", node).make() if node else PromptTemplate()
    assert examples.members is not None
    spans: dict[str, dict[int, np.ndarray]] = {}
    for number in np.concatenate([*examples.rows.values()]).tolist():
        rows = examples.members[number]
        spans.setdefault(names[rows[0]], {})[number] = tokens[rows]
    texts = []
    for name, row in first.items():
        numbers, place = np.flatnonzero(names == name), f"of {source.file} {name}"
        if (text := by_name.get(name)) is None or _squeezed(table["text"][row]) not in _squeezed(text.answer):
            fix = f"give the file that data={store.path} was made from"
            raise UserError(f"texts={source.path} lacks the text {name} with this answer: {fix}", "mismatch")
        prompt = text.prompt_for(tokenizer, source.file, template)
        ids = encode_answer(tokenizer, prompt, text.answer, place)[: tokens[numbers].max() + 1]
        (encoded,) = encode_prompts(tokenizer, [prompt], [place], start=True)
        _, offsets = read_offsets(tokenizer, ids, encoded.ids, text.answer)
        if [offsets[token][0] for token in tokens[numbers] if token < len(ids)] != starts[numbers].tolist():
            continue
        rows, request = np.full(len(ids), -1), ScoreRequest(prompt, ids, place)
        rows[tokens[numbers]] = numbers
        texts.append(StoredText(encoded, ids, request, rows, spans.get(name, {}), str(table["group"][row])))
    return texts


def _squeezed(text: str) -> str:
    return "".join(text.split())
