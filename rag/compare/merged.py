"""What a comparison takes from its parts: answers, thresholds, and recorded answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.checksums import sealed, unsealed
from probers.commands.merge import PartRun, PartRuns
from probers.files import write_bytes, write_text
from probers.types import Question, RunError, UserError, first_line

from ..answered_parts import join_traces, own
from .curves import QueryTrajectory

if TYPE_CHECKING:
    from probers.engine.model import CausalLM

    from ..remote import RemoteLM

#: Where a comparison keeps recorded answers, and the file that says of a part which there are.
REPLAY, _INDEX = "replay", "index.json"
_THRESHOLDS = "thresholds.json"


def take_answers(parts: PartRuns, questions: Sequence[Question], out: Path) -> None:
    """Write the parts' answers with every method, and their thresholds, as a run in one piece has them.

    Raises:
        UserError: parts with other thresholds or questions, or without an answer.
        RunError: a file cannot be written.
    """
    thresholds = parts.of_one("thresholds", lambda run: _bytes(run.path / _THRESHOLDS))
    if thresholds is not None:
        write_bytes(out / _THRESHOLDS, thresholds)
    names = {file.name for run in parts.runs for file in run.path.glob("traces/*.jsonl")}
    for name in sorted(names):
        join_traces(parts, questions, f"traces/{name}", out)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def check_weights(parts: PartRuns | None, lm: CausalLM | RemoteLM) -> None:
    """Refuse another model than the parts' for what is left to do (UserError)."""
    told = None if parts is None else parts.runs[0].state.get("chosen", {}).get("model")
    if told is not None and told != str(lm.spec):
        raise UserError(
            f"the parts were run with the model {told}, and the model here is {lm.spec}: give the same one"
        )


def index(recorded: Sequence[QueryTrajectory], out: Path) -> None:
    """Write down which recorded answers a part has."""
    entries = [
        {"file": f"{each.name}.json", "methods": list(each.methods), "triggers": each.trajectory.triggers}
        for each in recorded
    ]
    write_text(out / _INDEX, sealed({"recorded": entries}))


@dataclass
class RecordedParts:
    """The recorded answers of all parts.

    Attributes:
        parts: of one run.
    """

    parts: PartRuns

    def __call__(
        self, file: Path, methods: Sequence[str], triggers: Sequence[str], questions: Sequence[Question]
    ) -> None:
        """Join what the parts recorded for a query, if all have it; as :data:`.curves.Made`.

        A part in which a trigger was not asked leaves the file to be recorded anew.
        """
        if file.exists():
            return
        steps: dict[str, Any] = {}
        for run in self.parts.runs:
            mine = [q.id for q in own(questions, run.part)]
            entry = next((e for e in self._index[run.path] if set(methods) & set(e["methods"])), None)
            if not mine:
                continue
            if entry is None or not set(triggers) <= set(entry["triggers"]):
                return
            found = {each["id"]: each["steps"] for each in _read(run, entry["file"])["questions"]}
            steps |= {id: [_asked(step, triggers) for step in found[id]] for id in mine}
        write_text(file, sealed({"questions": [{"id": q.id, "steps": steps[q.id]} for q in questions]}))

    @cached_property
    def _index(self) -> Mapping[Path, Sequence[Mapping[str, Any]]]:
        return {run.path: _read(run, _INDEX)["recorded"] for run in self.parts.runs}


def _asked(step: Mapping[str, Any], triggers: Sequence[str]) -> dict[str, Any]:
    return {**step, "scores": {name: step["scores"][name] for name in triggers}}


def _read(run: PartRun, name: str) -> dict[str, Any]:
    path = run.path / REPLAY / name
    try:
        return unsealed(path, older=False)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({first_line(error)}): make the part again") from error
