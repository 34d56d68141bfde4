"""Results of the parts of a split run, joined: answers, thresholds and recorded answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.checksums import sealed, unsealed
from probers.commands.merge import PartRun, PartRuns
from probers.data.splits import Partition
from probers.files import write_bytes, write_text
from probers.types import Question, RunError, UserError, first_line

from .traces import Answer, TraceFile

if TYPE_CHECKING:
    from probers.engine.model import CausalLM

    from .compare.curves import QueryTrajectory
    from .remote import RemoteLM

#: Folder of recorded answers in a comparison, and a part's index of them.
REPLAY, _INDEX = "replay", "index.json"
_THRESHOLDS = "thresholds.json"


def own(questions: Sequence[Question], part: Partition | None) -> list[Question]:
    """The questions of one part, which has all questions of a group or none; None is the whole."""
    return [q for q in questions if part is None or part.owns(q.group or q.id)]


def join_traces(parts: PartRuns, questions: Sequence[Question], file: str, out: Path) -> list[Answer]:
    """Write the parts' answers into one file, as an undivided run does.

    Args:
        parts: of one run.
        questions: of the whole.
        file: the traces' path in the folder of each part.
        out: folder of the whole.

    Raises:
        UserError: a part has other questions, or lacks an answer.
        RunError: the file cannot be written.
    """
    found: dict[str, Answer] = {}
    for run in parts.runs:
        mine = own(questions, run.part)
        found |= {answer.id: answer for answer in TraceFile(run.path / file).answers(mine)}
    answers = [found[question.id] for question in questions]
    TraceFile(out / file).rewrite(answers)
    return answers


def take_answers(parts: PartRuns, questions: Sequence[Question], out: Path) -> None:
    """Write the parts' answers with every method, and their thresholds, as an undivided run does.

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
    """Refuse another model than the parts' for the remaining work (UserError)."""
    told = None if parts is None else parts.runs[0].state.get("chosen", {}).get("model")
    if told is not None and told != str(lm.spec):
        raise UserError(
            f"the parts were run with the model {told}, but the model here is {lm.spec}: give the same one",
            "mismatch",
        )


def index(recorded: Sequence[QueryTrajectory], out: Path) -> None:
    """Write a part's index of recorded answers."""
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
        """Join the parts' recorded answers for a query, if all have them; a :data:`.compare.curves.Made`.

        If a trigger was not asked in some part, the file is recorded anew.
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
        raise RunError(f"{path} is damaged ({first_line(error)}): make the part again", "damaged") from error
