"""The prober of a vLLM server: where it is said, and whether vLLM can read what it reads.

vLLM hands ``additional_config`` to every process and makes it part of the key under which compiled
graphs are kept. Under :data:`KEY` it holds the fields of :class:`Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from probers.bank.bank import ProbeBank
from probers.capture.hidden_states import StateTap
from probers.engine.loading import fingerprint
from probers.engine.vllm import KEY
from probers.online.scores import check_growing
from probers.options import check_record
from probers.store.spec import ModelSpec
from probers.types import UserError


@dataclass(frozen=True, slots=True)
class Settings:
    """Which prober scores.

    Attributes:
        prober: folder or hub id, or the name of a shipped one.
        allow_other: as of :class:`probers.bank.bank.ProbeBank`.
        layers: read of every token; filled in by :meth:`reading`, because a compiled graph that returns
            other layers must have another key.
    """

    prober: str
    allow_other: bool = False
    layers: tuple[int, ...] = ()

    @classmethod
    def of(cls, additional_config: Any) -> Settings:
        """Those of a server.

        Raises:
            UserError: there are none, or with an unknown field.
        """
        said = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
        if not isinstance(said, Mapping) or not said.get("prober"):
            raise UserError(
                f'--additional-config names no prober: give {{"{KEY}": {{"prober": "FOLDER"}}}}, or start '
                "the server with probers-serve backend=vllm"
            )
        check_record(cls, {**asdict(cls("")), **said}, f"additional_config.{KEY}.")
        return cls(**{**said, "layers": tuple(said.get("layers", ()))})

    def reading(self, bank: ProbeBank) -> dict[str, Any]:
        """These as plain containers, with the layers that ``bank`` reads."""
        return {**asdict(self), "layers": list(StateTap.layers_of(bank.spec.feature))}

    def load(self) -> ProbeBank:
        """The prober.

        Raises:
            UserError: there is none; it reads what vLLM does not hand out, or cannot score a growing text.
        """
        bank = ProbeBank.from_pretrained(self.prober, allow_other=self.allow_other)
        check_growing(bank)
        if bank.spec.site != "resid_post":
            raise UserError(
                f"prober={self.prober} reads site={bank.spec.site}, and vLLM hands out the residual stream "
                "after a block alone: train one at site=resid_post"
            )
        return bank


def model_spec(name: str, source: str, config: Any, dtype: str) -> ModelSpec:
    """Which model a server runs, for :meth:`ProbeBank.check_model`.

    Args:
        name: what the user calls it.
        source: its folder or hub id.
        config: its configuration, of transformers.
        dtype: number format it runs in.
    """
    text = config.get_text_config()
    folder = str(Path(source).expanduser())
    revision = fingerprint(folder, SimpleNamespace(config=config))
    return ModelSpec(name, revision, int(text.num_hidden_layers), int(text.hidden_size), dtype)
