"""Files that were cut, altered, replaced or filled with foreign content."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import sandbox

if TYPE_CHECKING:
    from .grounds import Grounds


@dataclass(frozen=True, slots=True)
class Target:
    """Files of the grounds, and the job that reads them.

    Attributes:
        files: pattern of paths below the grounds.
        job: name of the job.
        sealed: True for files made by the toolkit, which must not be used without a word once altered; a
            user's files may hold anything that can be read.
        option: option of the job, in place of its own.
    """

    files: str
    job: str
    sealed: bool = True
    option: str = ""


TARGETS = (
    Target("cot/manifest.json", "train"),
    Target("cot/shards/*.json", "train"),
    Target("cot/shards/*.parquet", "train"),
    Target("cot/shards/*.safetensors", "train"),
    Target("cot/run.json", "train"),
    Target("cot/shards/*", "classifier"),
    Target("prober/config.json", "probing"),
    Target("prober/heads.safetensors", "probing"),
    Target("prober/*", "probing"),
    Target("radio/config.json", "radio"),
    Target("radio/heads.safetensors", "radio"),
    Target("clf/*", "adaptive"),
    Target("in/corpus.jsonl", "rag", sealed=False),
    Target("in/corpus.jsonl.gz", "rag", sealed=False, option="corpus=in/corpus.jsonl.gz"),
    Target("in/corpus.tsv", "rag", sealed=False, option="corpus=in/corpus.tsv"),
    Target("in/questions.jsonl", "rag", sealed=False),
    Target("in/questions.jsonl", "datagen", sealed=False, option="on_bad_line=skip"),
    Target("in/articles.jsonl", "wiki", sealed=False),
    Target("in/aliases.jsonl", "wiki", sealed=False),
    Target("in/vectors.txt", "wiki", sealed=False),
    Target("in/official/hotpot_distractor.json", "hotpotqa", sealed=False),
    Target("in/official/twowiki*.json", "2wikimultihopqa", sealed=False),
    Target("in/official/dpr_nq.json", "nq", sealed=False),
    Target("in/official/triviaqa.json", "triviaqa", sealed=False),
    Target("in/official/musique_full.jsonl", "musique", sealed=False),
    Target("in/official/strategyqa*.json", "strategyqa", sealed=False),
    Target("in/official/iirc.json", "iirc", sealed=False),
    Target("caches/*/*", "stored"),
    Target("caches/bm25/*/*", "stored"),
    Target("dense/**/*", "dense"),
    Target("wikicache/**/*", "wikipedia"),
    Target("cot-cut/**/*", "datagen again"),
    Target("train-cut/*", "train again"),
    Target("train-cut/*.safetensors", "train again"),
    Target("compare-cut/**/*", "compare again"),
    Target("rag-cut/*", "rag again"),
)

#: Words with which a command reports that it did not accept a file as it was.
_SAID = re.compile(
    r"damaged|again|left out|cannot be|skipped|not used|ignored|malformed|does not|no longer|unusable"
)


def attack(grounds: Grounds, index: int, rng: random.Random) -> sandbox.Finding:
    """Run a command that reads one damaged file."""
    target = TARGETS[index % len(TARGETS)]
    job = grounds.jobs[target.job]
    if target.option:
        key = target.option.partition("=")[0]
        kept = [a for a in job.arguments if a.partition("=")[0] != key]
        job = replace(job, arguments=(*kept, target.option))
    with grounds.field(job.needs) as field:
        files = sorted(p for p in field.glob(target.files) if p.is_file())
        if not files:
            raise RuntimeError(f"nothing to damage at {target.files}")
        path = rng.choice(files)
        done = damage(path, rng)
        name = str(path.relative_to(field))
        what = f"{name} {done} -> {target.job}"
        from .grounds import held, lost, outcome

        own = [job.out] if job.out else []
        before = held(field, [name, "caches", "dense", "wikicache", *own])
        ended = sandbox.run(job.command, job.argv, field, before=job.before)
        losses = lost(before, held(field))
        differs = ""
        if ended.code == 0 and target.sealed and not _SAID.search(ended.out + ended.err):
            found, expected = outcome(field, job, ended), grounds.expected[target.job]
            odd = sorted(k for k in {*found, *expected} if found.get(k) != expected.get(k))
            odd = [k for k in odd if name != f"{job.out}/{k}" or done not in ("appended",)]
            # The target of a link that the attack made lies in the run, and belongs to nobody else.
            odd = [k for k in odd if f"{job.out}/{k}" != str(_target(path).relative_to(field))]
            differs = f"without a word {', '.join(odd[:6])}" if odd else ""
    return sandbox.finding("damage", index, what, ended, job.command, losses=losses, differs=differs)


def _target(path: Path) -> Path:
    """Return the target of a link in the place of a file."""
    return path.with_name(f".{path.name}.copy")


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in a random way; return a description."""
    ways: list[Callable[[Path, random.Random], str]] = [_bytes, _bytes, _place]
    if path.suffix in (".json", ".jsonl", ".gz"):
        ways += [_structure] * 5
    if path.suffix == ".safetensors":
        ways += [_header] * 2
    if path.suffix in (".yaml", ".tsv", ".txt", ".jsonl", ".gz", ".json"):
        ways += [_text] * 2
    return rng.choice(ways)(path, rng)


def _place(path: Path, rng: random.Random) -> str:
    """Put something else in the place of the file."""
    way = rng.choice(
        ["deleted", "emptied", "a folder", "a FIFO", "a link to itself", "a dangling link", "/dev/zero",
        "/dev/null",
         "a link to a copy"]
    )  # fmt: skip
    blob = path.read_bytes()
    path.unlink()
    if way == "emptied":
        path.write_bytes(b"")
    elif way == "a folder":
        path.mkdir()
        (path / "inner").write_bytes(blob)
    elif way == "a FIFO":
        os.mkfifo(path)
    elif way == "a link to itself":
        path.symlink_to(path.name)
    elif way == "a dangling link":
        path.symlink_to("nowhere")
    elif way.startswith("/dev"):
        path.symlink_to(way)
    elif way == "a link to a copy":
        other = _target(path)
        other.write_bytes(blob)
        path.symlink_to(other.name)
    return way


def _bytes(path: Path, rng: random.Random) -> str:
    blob = bytearray(path.read_bytes())
    if not blob:
        path.write_bytes(rng.randbytes(16))
        return "filled with noise"
    at = rng.randrange(len(blob))
    way = rng.choice(
        ["cut", "cut by one", "bit", "bits", "swapped", "zeroed", "appended", "doubled", "removed", "noise"]
    )
    if way == "cut":
        del blob[at:]
    elif way == "cut by one":
        del blob[-1]
    elif way in ("bit", "bits"):
        for _ in range(1 if way == "bit" else 20):
            blob[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
    elif way == "swapped":
        other = rng.randrange(len(blob))
        blob[at], blob[other] = blob[other], blob[at]
    elif way == "zeroed":
        blob[at : at + 512] = bytes(len(blob[at : at + 512]))
    elif way == "appended":
        blob += rng.randbytes(rng.choice([1, 100]))
    elif way == "doubled":
        blob += bytes(blob)
    elif way == "removed":
        del blob[at : at + rng.choice([1, 8, 200])]
    else:
        blob = bytearray(rng.randbytes(len(blob)))
    path.write_bytes(bytes(blob))
    return f"{way} at {at}"


_INSERTS: dict[str, bytes] = {
    "invalid UTF-8": b"\xff\xfe\x80", "BOM": b"\xef\xbb\xbf", "NUL": b"\0\0",
    "escape": b"\x1b[31m\x1b]0;x\x07",
    "surrogate": b"\xed\xa0\x80", "JSON surrogate": rb"\ud800", "line end": b"\r\n",
    "separator": "\u2028".encode(),
    "deep": b"[" * 100_000, "long": b"x" * 3_000_000,
    "quote": b'"', "brace": b"}", "NaN": b"NaN", "digits": b"9" * 5000,
}  # fmt: skip


def _text(path: Path, rng: random.Random) -> str:
    packed = path.suffix == ".gz"
    blob = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    lines = blob.splitlines(keepends=True)
    way = rng.choice(
        [*_INSERTS, "line doubled", "line lost", "lines swapped", "all lines doubled", "blank lines"]
    )
    if way in _INSERTS:
        at = rng.choice([0, len(blob), rng.randrange(len(blob) + 1)])
        blob = blob[:at] + _INSERTS[way] + blob[at:]
    elif lines:
        at = rng.randrange(len(lines))
        if way == "line doubled":
            lines.insert(at, lines[at])
        elif way == "line lost":
            del lines[at]
        elif way == "lines swapped":
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif way == "all lines doubled":
            lines += lines
        else:
            lines.insert(at, b"\n \n")
        blob = b"".join(lines)
    path.write_bytes(gzip.compress(blob) if packed else blob)
    return way


def deep(levels: int) -> Any:
    """Make a list within a list within a list .."""
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e308, 10**30, 2**63, -(2**63), float("nan"), float("inf"),
    float("-inf"), "", " ", "x", "1", "null", "\0", "\ud800", "\u202eabc", "../../x", "/etc/passwd", "\n",
    "\x1b[31m",
    "x" * 100_000, [], [[]], [None], {}, {"": None}, {"x": 1}, [1, 2, 3], ["a"], [{"a": 1}],
    {"a": {"b": [1]}},
    [0] * 10_000, ["x"] * 10_000,
)  # fmt: skip


def wrong_value(rng: random.Random) -> Any:
    """Draw any JSON value that could stand where another is expected."""
    return deep(rng.choice([50, 500])) if rng.random() < 0.03 else copy.deepcopy(rng.choice(_VALUES))


def _structure(path: Path, rng: random.Random) -> str:
    """Alter the JSON value of a file, or of one of its lines."""
    packed = path.suffix == ".gz"
    text = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
    by_line = ".jsonl" in path.name or path.name in ("twowiki_id_aliases.json",)
    parts = text.splitlines() if by_line else [text]
    if not parts:
        return _bytes(path, rng)
    at = rng.randrange(len(parts))
    try:
        value = json.loads(parts[at])
    except ValueError:
        return _bytes(path, rng)
    done = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        try:
            value, told = altered(value, rng)
        except RecursionError:  # no second change after one that put in brackets without end
            break
        done.append(told)
    parts[at] = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    blob = ("\n".join(parts) + "\n").encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(blob) if packed else blob)
    return f"line {at + 1}: {'; '.join(done)}" if by_line else "; ".join(done)


def altered(value: Any, rng: random.Random) -> tuple[Any, str]:
    """Change a JSON value in one place; return it with a description."""
    places = list(_places(value))
    if not places or rng.random() < 0.03:
        new = wrong_value(rng)
        return new, f"all is {_shown(new)}"
    holder, key, name = rng.choice(places)
    way = rng.choice(["value", "value", "value", "lost", "renamed", "near", "doubled", "nested", "added"])
    old = holder[key]
    if way == "lost":
        del holder[key]
    elif way == "renamed" and isinstance(holder, dict):
        holder[f"{key}s"] = holder.pop(key)
    elif way == "near" and isinstance(old, (int, float)) and not isinstance(old, bool):
        holder[key] = rng.choice([old + 1, -old, old * 2, old * 10**12, old / 2 + 0.25, str(old)])
    elif way == "near" and isinstance(old, str):
        holder[key] = rng.choice([old + " ", old.upper(), old[:-1], old + "\u0301", [old]])
    elif way == "doubled" and isinstance(old, list):
        holder[key] = old + copy.deepcopy(old)  # if shared, a second change could make it hold itself
    elif way == "nested":
        holder[key] = rng.choice([[old], {"value": old}])
    elif way == "added" and isinstance(holder, dict):
        holder[rng.choice(["schema", "version", "format", "_target_", "extra", ""])] = wrong_value(rng)
    else:
        holder[key] = wrong_value(rng)
    if way in ("lost", "renamed", "added", "doubled", "nested"):
        return value, f"{name} {way}"
    return value, f"{name} is {_shown(holder[key])}"


def _places(value: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yield every holder, key and dotted name within a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        inner = f"{name}.{key}" if name else str(key)
        yield value, key, inner
        yield from _places(value[key], inner)


def _shown(value: Any) -> str:
    return ascii(value)[:60]


def _header(path: Path, rng: random.Random) -> str:
    """Alter the header of a safetensors file."""
    blob = path.read_bytes()
    if len(blob) < 8:
        return _bytes(path, rng)
    (size,) = struct.unpack("<Q", blob[:8])
    way = rng.choice(["claims", "header"])
    if way == "claims" or size > len(blob):
        claimed = rng.choice([0, 1, size + 1, size - 1, 2**63, 2**64 - 1, len(blob), 10**9])
        path.write_bytes(struct.pack("<Q", claimed) + blob[8:])
        return f"claims a header of {claimed}"
    header, told = altered(json.loads(blob[8 : 8 + size]), rng)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob[8 + size :])
    return f"header: {told}"
