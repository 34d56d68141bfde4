"""Verbs that join rooms: a prober from rows, by labelled states."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from .data.rows import FIELDS, plain
from .datagen.labelling import label
from .datagen.labels.texts import Texts
from .datagen.settings import Options
from .model.causal_lm import CausalLM
from .options import refuse_unknown, shown
from .prober.prober import Prober
from .train.heads import head_of
from .train.methods import method_of
from .train.run import OPTIONS, listed, method_for, settings_of
from .train.run import fit as fit_stores
from .train.settings import SPAN_LOSSES
from .types import OF_PASSAGES, UserError

log = logging.getLogger(__name__)

#: Options of reading and of labelling rows; the others are those of training.
_READING = [each.name for each in fields(Texts) if each.init and each.name not in ("texts", "columns")]
_LABELLING = [
    each.name for each in fields(Options) if each.name not in ("layers", "engine") and each.name[0] != "_"
]

_UNUSED_PASSAGES = (
    "note: the model reads these rows' passages before each answer; to learn which one supports a sentence, "
    'label sentences or spans, and add unit="sentence", site=["resid_diff", "passages"]'
)


def fit(
    data: Any, rows: Any = None, *, head: Any = "probing_rag", layers: Any = "all",
    out: str | Path | None = None, **options: Any,
) -> Prober:  # fmt: skip
    """Train a calibrated prober, and measure it on held-out texts beside controls.

    ::

        prober = probers.fit(lm, frame, prompt="question", answer="output", wrong="is_wrong")
        prober = probers.fit(store, head="linear", layers=[10])

    Args:
        data: a model, which reads ``rows``; or a store of labelled states, its folder, or several of these.
        rows: labelled texts: a DataFrame, a list of dictionaries, a ``datasets.Dataset`` or a file.
        head: name of a head, with its options as typed ("radio hidden=64"), or a class of your own.
        layers: "all", a number, or a list of numbers from 1.
        out: folder that keeps the prober, with its states in ``<out>.states``; both resume. None keeps none.
        options: names of columns (``answer="output"``), and options of ``Texts``, :func:`probers.label` and
            probers-train under the names of the commands' keys.

    Raises:
        UserError: rows that cannot be used, one class only, an unknown option, layers that are not there.
    """
    layers = plain(layers)  # numbers of numpy too
    layers = [*map(plain, layers)] if isinstance(layers, (list, tuple, range)) else layers
    if not isinstance(data, CausalLM):
        if rows is not None:
            fix = "make the model by CausalLM.from_pretrained(name), or CausalLM(model, tokenizer)"
            raise UserError(f"fit takes rows beside a model only, found {type(data).__name__}: {fix}")
        return fit_stores(data, head=head, layers=layers, out=out, **options)
    if rows is None:
        raise UserError("fit(lm, rows) needs rows: texts with answer and wrong", "missing-value")
    known = ["layers", "head", *FIELDS, *_READING, *_LABELLING, *OPTIONS]
    refuse_unknown("fit", options, dict.fromkeys(known))
    # A field may share its name with an option, as split does, which is no string.
    columns = {name: options.pop(name) for name in FIELDS if isinstance(options.get(name), str)}
    if columns.get("outside") in ("auto", "right", "unknown"):
        options["outside"] = columns.pop("outside")
    reading = {name: options.pop(name) for name in _READING if name in options}
    source = Texts(rows, columns=columns or None, **reading)
    labelling = {"limit": None} | {name: options.pop(name) for name in _LABELLING if name in options}
    shared = {name: labelling[name] for name in ("seed",) if name in labelling}
    _check(data, rows, head, layers, labelling.get("pool"), out, shared | options)
    states = None if out is None else f"{out}.states"
    store = label(data, source, layers=layers, out=states, **labelling)
    if source.rendered == source.prompt.fingerprint and not {*OF_PASSAGES} & {*source.options.sites}:
        log.warning(_UNUSED_PASSAGES)
    return fit_stores(store, head=head, layers=layers, out=out, **shared, **options)


def _check(lm: CausalLM, rows: Any, head: Any, layers: Any, pool: Any, out: Any, options: Any) -> None:
    """Refuse a wrong option, and what cannot be trained from rows, before texts are read (UserError)."""
    known = range(1, lm.num_layers + 1)
    if layers != "all" and not (listed(layers) and all(n in known for n in listed(layers))):
        choices = f'"all", a number from 1 to {lm.num_layers}, or a list of such numbers'
        raise UserError(f"layers={shown(layers)} must be {choices}", "layers")
    if len(pools := listed(pool)) > 1:
        other = "give one, or label(lm, Texts(rows), pool=[..]) once and fit(store, pool=..) for each"
        raise UserError(f"pool={shown(pools)}: fit(lm, rows) trains on one pool: {other}", "conflict")
    settings = settings_of(head_of(head), layers, out, options)
    kind, adapts = settings.head.kind, method_of(settings.head) == "adapters"
    if adapts and not isinstance(rows, (str, Path)):
        raise UserError("head=lora reads the texts again: give rows as the path of a file", "unsupported")
    reads = adapts or True in (getattr(kind, "tokens", None), getattr(kind, "causal", None))
    if (reads or settings.loss in SPAN_LOSSES) and pools != ["tokens"]:
        what = f"head={shown(head)} with loss={settings.loss}"
        raise UserError(f'{what} reads the states of every token: give pool="tokens"', "mismatch")
    method_for(settings)
