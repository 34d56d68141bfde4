"""``probers-train head=lora``: adapters trained below a head, and what they do for it and to the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from probers.bank.io import ADAPTER
from probers.capture.pooling import as_stored
from probers.commands.components import Component
from probers.engine import adapters
from probers.engine.language_model import Scoring
from probers.engine.model import CausalLM
from probers.engine.tokens import decode
from probers.evaluation.bootstrap import Bootstrap
from probers.evaluation.metrics import auroc
from probers.heads import ProbeHead
from probers.pages import public_model
from probers.store.joined import Stored
from probers.store.spec import ModelSpec
from probers.store.store import FeatureStore
from probers.types import Feature, Generation, Needs, RunError, UserError, count
from probers.uncertainty import signals, signals_before, surprise
from probers.words.text import split_sentences

from ..assemble import WITHOUT, Trained, assemble
from ..data import Column, Dataset
from ..fit import Fitted, Task, targets_of
from ..method import Method
from ..module import Batches, NotFiniteError, Schedule, loader
from ..trainer import Loaders, train
from .adapted import AdaptedModel, Lora
from .module import LoraModule, Numbers, Texts
from .texts import StoredText, load_model, read_texts, source_of

if TYPE_CHECKING:
    from ..settings import Train

log = logging.getLogger(__name__)

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

    def __init__(self, options: Lora) -> None:
        super().__init__()
        self._options = options
        self._notes: list[str] = []

    def settle(self, settings: Train) -> Train:
        adapters.check_installed("head=lora")
        settings = super().settle(settings)
        if settings.loss == "double_softmax" or settings.balance != "none":
            told = "head=lora has loss=ce and loss=span_max, without balance"
            given = f"loss={settings.loss} balance={settings.balance}"
            raise UserError(f"{told}: leave {given} out", "unsupported")
        return replace(settings, head=Component.of("head", "linear"), learning_curve=False)

    def prepare(self, dataset: Dataset, stores: Sequence[Stored], settings: Train) -> Dataset:
        """Load the model, and keep the examples whose texts it reads in the tokens that it wrote."""
        layers = sorted({column.layer for column in dataset.columns if column.layer})
        if len(layers) != 1:
            told = f"layer={settings.layer} names {len(layers)} layers"
            raise UserError(f"head=lora has one head, on one layer, and {told}: give layer=K", "conflict")
        (store, *more) = stores
        if more or not isinstance(store, FeatureStore) or store.spec.site != "resid_post":
            told = "head=lora takes one store, with site=resid_post: give one as data=STORE"
            raise UserError(told, "unsupported")
        source = source_of(store, settings.texts)
        self._lm, examples = load_model(store, settings.device), dataset.examples
        self._texts = read_texts(store, examples, source, self._lm.tokenizer)
        read = [number for text in self._texts for number in text.spans]
        rows = {split: own[np.isin(own, read)] for split, own in examples.rows.items()}
        for split, own in rows.items():
            if not len(own):
                told = f"no {split} text of data={store.path} is read in the tokens in which it was written"
                raise UserError(f"head=lora reads texts again, and {told}: use head=linear", "mismatch")
        if lost := sum(map(len, examples.rows.values())) - len(read):
            told = "left out: the model wrote them in other tokens than it reads them in"
            self._notes.append(f"{count(lost, 'span')} {told}")
        return replace(dataset, examples=replace(examples, rows=rows))

    def plan(self, dataset: Dataset, settings: Train) -> tuple[list[Task], list[str]]:
        tasks, notes = super().plan(dataset, settings)
        return tasks, [*notes, *self._notes]

    def fit(self, out: Path, tasks: Sequence[Task], dataset: Dataset, how: Train, what: str = "") -> Fitted:
        """Train the head that the adapters begin with."""
        return super().fit(out, tasks, dataset, replace(how, epochs=self._options.start_epochs), what)

    def complete(
        self, trained: Trained, fitted: Fitted, dataset: Dataset, settings: Train, out: Path
    ) -> tuple[Trained, Dataset]:
        """Train head and adapters from a prober of head=linear.

        Returns the prober with adapters, beside the controls of the one without and that one itself, and the
        examples with states and signals of the adapted model; where no adapters within ``kl_limit`` were
        better, what was given. The adapters are written to ``out``. RunError for a loss that is not finite.
        """
        begun, frozen, lm, options = time.perf_counter(), trained, self._lm, self._options
        (number,) = (i for i, task in enumerate(fitted.tasks) if task.is_probe)
        alone, examples = fitted.select([number]), dataset.examples
        (task,), base = alone.tasks, lm.spec
        adapted = AdaptedModel(lm, task.layer, options, settings.seed)
        weights = examples.span_weights(settings.span_weight)
        shares = None if weights is None else torch.from_numpy(weights).float()
        targets, split_of = targets_of([task], examples)[:, 0], examples.table["split"].tolist()
        texts = Texts(self._texts, targets, shares, split_of)
        rows, (detector,) = examples.rows["validation"], frozen.layers.values()
        start = float(auroc(examples.wrong[rows], detector.scores[rows]))
        module = _train(adapted, texts, options, alone.head, start, settings, out)
        head = module.restore_best()
        about: dict[str, Any] = {
            "rank": options.rank, "lambda_kl": options.lambda_kl, "kl_limit": options.kl_limit,
            "parameters": sum(tensor.numel() for tensor in adapted.tensors.values()),
            "kept": module.improved,
            "validation": {
                "without": start, "with": float(module.auroc[0]), "kl": float(module.divergence[0]),
            },
        }  # fmt: skip
        log.info("adapters of %s parameters: %.0f s", f"{about['parameters']:,}", time.perf_counter() - begun)
        if not module.improved:
            told = "no adapters were better on validation than none"
            told += "" if options.kl_limit is None else f" within kl_limit={options.kl_limit}"
            notes = [*frozen.notes, f"{told}: this prober has none"]
            return replace(frozen, adapter=about, notes=notes), dataset
        folder = out / ADAPTER
        adapters.save(lm.model, folder, public_model(base.id))
        model = replace(base, revision=base.revision + adapters.mark(adapters.active_digest(lm.model)))
        read = _read_again(lm, self._texts, dataset, task.column, model)
        whole = replace(
            alone, head=head, accuracy=module.accuracy, loss=module.loss_value, auroc=module.auroc,
            steps=module.steps_taken,
        )  # fmt: skip
        trained = assemble(whole, read, settings, controls=False)
        plain = replace(frozen.saved, name=WITHOUT, about="head=linear on the model without adapters")
        return replace(
            trained, bank=replace(trained.bank, adapter=folder), controls=[plain, *frozen.controls],
            person=frozen.person, notes=[*frozen.notes, *trained.notes],
            adapter=about | _of_model(adapted, texts, options.tokens, settings),
        ), read  # fmt: skip


def _train(
    adapted: AdaptedModel, texts: Texts, options: Lora, head: ProbeHead, start: float, settings: Train,
    out: Path,
) -> LoraModule:  # fmt: skip
    """Train from a trained head, whose AUROC on validation is ``start``; resumes what ``out`` holds."""
    training, validation = texts.of("train"), texts.of("validation")
    schedule = Schedule(-(-len(training) // settings.batch_size), settings.epochs, settings.checks)
    module = LoraModule(
        head.train().requires_grad_(True), adapted, texts, settings, options, start=start,
        steps=schedule.steps,
    )  # fmt: skip

    def data(done: int) -> Loaders:
        batches = Batches(training, settings.batch_size, [settings.seed], schedule, start=done)
        return loader(Numbers(), batches), loader(Numbers(), [validation[None]])

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
    table = dataset.examples.table.copy()
    found: dict[int, dict[str, float]] = {}
    requests = [text.request for text in texts]
    for made in lm.score_each(requests, Scoring(Needs((feature,), top=True))):
        for place, generation in made.items():
            text = texts[place]
            there = text.rows >= 0
            states[text.rows[there]] = as_stored(generation.states[feature][there], spec.dtype).to(kind)
            for number, tokens in text.spans.items():
                found[number] = _signals(generation, tokens)
    own = pd.DataFrame.from_dict(found, orient="index")
    for name in own.columns.intersection(table.columns):
        table.loc[own.index, name] = own[name]
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


def _of_model(adapted: AdaptedModel, texts: Texts, most: int, settings: Train) -> dict[str, Any]:
    """Measure what the adapters do to the model on test texts: its divergence, and its own text.

    At most so many tokens are read at once.
    """
    lm, test = adapted.lm, [texts.texts[i] for i in texts.of("test").tolist()]
    read = list(adapted.read_all(test, most))
    values = np.concatenate([apart for _, apart in read])
    groups = np.repeat([text.group for text, _ in read], [len(apart) for _, apart in read])
    bootstrap = Bootstrap(groups, resamples=settings.resamples, seed=settings.seed)
    lm.skip_too_long()
    prompts = [text.prompt.text or _beginning(lm, text) for text in test[:_CONTINUED]]
    with adapters.switched_off(lm.model):
        own = [g for g in lm.generate(prompts, max_new_tokens=_LENGTH) if g.token_ids]
        without = _perplexity(lm, own)
    perplexity = {"without": without, "with": _perplexity(lm, own), "texts": len(own)}
    return {**bootstrap.interval(values.astype(float)).figures("kl"), "perplexity": perplexity}


def _beginning(lm: CausalLM, text: StoredText) -> str:
    """First sentence of an answer, in place of a prompt."""
    answer = decode(lm.tokenizer, text.ids)
    _, end = split_sentences(answer)[0]
    return answer[:end]


def _perplexity(lm: CausalLM, own: Sequence[Generation]) -> float:
    read = lm.score([g.prompt for g in own], [g.token_ids for g in own])
    return float(np.exp(-np.concatenate([each.logprobs for each in read]).mean())) if own else float("nan")
