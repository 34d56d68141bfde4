"""The choice between the rules and spaCy's NER."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from probers.types import UserError

from .base import Entity
from .rules import find_entities
from .spacy import find_entities_spacy, installed_pipeline

Kind = Literal["rules", "spacy", "auto"]


@dataclass(slots=True)
class Recogniser:
    """Finds entities by the recogniser asked for and says once which one that is.

    Attributes:
        kind: "rules", "spacy", or "auto": spaCy where an English pipeline is installed.
        fine: also the types "work", "organisation" and "place"; else these are "name".
        quiet: do not print the note.
        name: what is used: "rules" or the name of the pipeline.

    Raises:
        UserError: an unknown kind, or "spacy" without an English pipeline.
    """

    kind: Kind = "auto"
    fine: bool = False
    quiet: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"recogniser={self.kind} is unknown: choose rules, spacy or auto")
        pipeline = None if self.kind == "rules" else installed_pipeline()
        if self.kind == "spacy" and pipeline is None:
            raise UserError(
                "recogniser=spacy needs an English spaCy pipeline and none is installed: "
                "python -m spacy download en_core_web_sm, or recogniser=rules"
            )
        self.name = pipeline or "rules"
        if not self.quiet:
            reason = (
                " (no English spaCy pipeline is installed)" if self.kind == "auto" and not pipeline else ""
            )
            print(f"entities: by {'rules' if pipeline is None else 'the NER of ' + pipeline}{reason}")

    def __call__(self, text: str) -> list[Entity]:
        """Entities of a text from left to right, none overlapping another."""
        if self.name == "rules":
            return find_entities(text, fine=self.fine)
        return find_entities_spacy(text, fine=self.fine, pipeline=self.name)
