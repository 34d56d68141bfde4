"""Options of every command with values, keys and forms that nobody should give."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import sandbox

if TYPE_CHECKING:
    from .grounds import Grounds

#: Values as typed, by their kind of oddity.
VALUES: dict[str, tuple[str, ...]] = {
    "empty": ("", " ", "''", '""', "[]", "{}", "null", "None", "~"),
    "truth": ("true", "false", "True", "yes", "on", "0", "1", "[true]"),
    "number": ("-1", "-0", "2", "2.5", "1e3", "-1.5", "0.0", "007", "0x10", "1_000", "+3", "1e-300",
               "1e308", "٣"),
    "huge": ("4294967295", "4294967296", "9" * 30, "-" + "9" * 30, "9" * 5000, "1e400", "1000000"),
    "not finite": ("nan", "inf", "-inf", ".nan", "NaN", "Infinity", "[nan]", "{a: inf}"),
    "text": ("abc", "a b", "é", "漢字", "\U0001f4a9", "'x y'", '"q"', "#", "!x", "@x", "%s", "{0}", "*", "?",
             "=", "a=b"),
    "list": ("[1]", "[1,2]", "[a,b]", "[[1]]", "[null]", "[1,a]", "[6,6]", "[-1]", "[1.5]", "[{a: 1}]",
             "[" + "1," * 3000 + "1]"),
    "mapping": ("{a: 1}", "{a: {b: {c: 1}}}", "{1: 2}", "{a: null}", "{_target_: os.system}", "{null: 1}",
                "{a b: 1}"),
    "deep": ("[" * 15 + "]" * 15, "[" * 30 + "]" * 30, "[" * 5000 + "]" * 5000,
             "{a: " * 18 + "1" + "}" * 18, "(" * 40),
    "unbalanced": ("[1", "{a", "a]", "(", ")", "'", '"', "\\", "a'b", "[a,b", "{a: 1", "]]", "'a",
                   'a"', "\\'"),
    "sweep": ("a,b", "1,2", ",", "a,", "range(1,3)", "choice(1,2)", "glob(*)", "sort(2,1)", "shuffle(1,2)",
              "interval(0,1)",
              "tag(a,1)", "int(3)", "str(3)", "float(nan)", "bool(x)", "extend_list(1)", "json_str({a: 1})",
              "choice()"),
    "reference": ("${seed}", "${nope}", "${oc.env:HOME}", "${oc.env:NOPE}", "${oc.env:NOPE,3}", "${", "${}",
                  "${${seed}}",
                  "${.x}", "${..seed}", "${oc.decode:'[1'}", "${oc.create:{a: 1}}", "${hydra:job.name}",
                  "${oc.env:}",
                  "${oc.select:nope,3}", "${oc.dict.keys:model}", "${model}", "$", "$HOME", "\\${seed}",
                  "${oc.env:HOME}x"),
    "marks": ("???", "-", "--", "-m", "--help", "+", "=", ":", ";", "|", "&&", "`ls`", "$(ls)"),
    "control": ("\x1b[31m", "a\nb", "\t", "\r", "\x07", "\u202e", "\u2028", "\x7f", "a\x0bb", "\ufeff",
                "\u0000".replace("\0", "\x01")),
    "surrogate": ("\udcff", "a\udc80b", "\ud800", "[\udcff]"),
    "path": ("..", ".", "../..", "in", "in/questions.jsonl", "in/corpus.jsonl", "keep", "keep/notes.txt",
             "/dev/null", "/dev/full",
             "/dev/null/x", "/proc/self/mem", "/proc/x", "nowhere/x", "./in", "in/../in", "~", "~root/x",
             "in/", "link", "loop",
             "fifo", "/dev/fd/0", "file:///etc", "http://127.0.0.1:9/x", "hf:x", "a/b/c/d"),
    "long": ("a" * 300, "a" * 20_000, "a/" * 2000, " " * 500, "x," * 2000),
}  # fmt: skip

#: Choices of groups that some machines lack, or that take long.
_NOT_HERE = {"dense"}
#: Keys for which a large number asks for a long job, which must end at once when interrupted.
_AMOUNTS = re.compile(
    r"(epochs|checks|patience|seeds|resamples|limit|max_new_tokens|answer_tokens|max_retrievals|k|draft|sweep"
    r"|validation|examples|memory|batch_size|per_article|hidden|width|layers|n|window|components|depth|retries"
    r"|timeout|backoff|max_wait|rate|passage_words|shard_size|best_k|top_n|save_every|min_sentences|max_chars)$"
)
_PATIENCE = 10.0  # seconds after which a job counts as long

#: Attacked requests of each command, with their relative frequency; "cfg" stops after the check.
PROFILES: dict[str, tuple[str, int]] = {
    "datagen": ("datagen", 3), "wiki": ("wiki", 3), "train": ("train", 3), "classifier": ("classifier", 2),
    "ask": ("ask", 3), "rag": ("rag", 3), "compare": ("compare", 3), "probing": ("probing", 1),
    "demo": ("demo", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """Typed request: a command, its arguments, and a description of the changes."""

    command: str
    arguments: tuple[str, ...]
    what: str
    long: bool


@functools.cache
def keys(command: str) -> tuple[str, ...]:
    """List every dotted key of a command, and those of all its parts."""
    from probers.commands.help import help_of

    told = help_of(command)
    parts = [choice.keys for named in told.groups.values() for choice in named.values()]
    return tuple(dict.fromkeys(key.name for keys in (told.keys, *parts) for key in keys))


@functools.cache
def parts(command: str) -> tuple[tuple[str, str], ...]:
    """List group and name of every choice of a command's parts, presets and methods."""
    from probers.commands.components import choices
    from probers.commands.compose import groups_of, settings_of
    from probers.commands.presets import methods, presets

    own = groups_of(settings_of(command))
    found = [(g, name) for g in own for name in choices(g) if name not in _NOT_HERE]
    found += [("experiment", name) for name in presets(command)] + [("method", m) for m in methods(command)]
    return tuple(found)


def _value(rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(list(VALUES))
    return kind, rng.choice(VALUES[kind])


def _near(key: str, rng: random.Random) -> str:
    at = rng.randrange(len(key))
    return rng.choice([key[:at] + key[at + 1 :], key[:at] + key[at] + key[at:], key.upper(), f"{key}.x",
    f"{key}s",
                       f"hydra.{key}", f"+{key}", f"++{key}", f"~{key}", f"{key}@x", f"{key}.", f".{key}",
                       f" {key}",
                       key.replace(".", "/"), key.replace(".", ".."), f"{key}[0]", f"é{key}",
                       f"{key}:x"])  # fmt: skip


def request(base: Sequence[str], command: str, rng: random.Random) -> Request:
    """Draw a valid request with one or two things wrong, most of the time."""
    arguments, done, long = list(base), [], False
    for _ in range(rng.choice([1, 1, 1, 2])):
        way = rng.choice(["value"] * 8 + ["near", "part", "part", "two", "bare", "again", "several", "flag"])
        key = rng.choice(keys(command))
        kind, value = _value(rng)
        if way == "near":
            key = _near(key, rng)
        elif way == "part":
            group, name = rng.choice(parts(command)) if parts(command) else ("head", "linear")
            arguments = [a for a in arguments if not a.startswith((f"{group}=", f"{group}."))]
            arguments.append(f"{group}={name}")
            own = [k for k in keys(command) if k.startswith(f"{group}.")]
            key = rng.choice(own) if own else key
            done.append(f"{group}={name}")
        elif way == "bare":
            arguments.insert(rng.randrange(len(arguments) + 1), value)
            done.append(f"bare {value!r:.60}")
            continue
        elif way == "again":
            arguments.append(rng.choice(arguments))
            done.append("again")
            continue
        elif way == "several":
            other = rng.choice(keys(command))
            arguments.append(f"{other}={_value(rng)[1]}")
            done.append(other)
        elif way == "flag":
            flag = rng.choice(
                [
                    ["-m"],
                    ["--multirun"],
                    ["--cfg", "job"],
                    ["--cfg"],
                    ["-c", "x"],
                    ["--source"],
                    ["--source=x"],
                ]
            )
            arguments += flag
            done.append(" ".join(flag))
        if rng.random() < 0.9:
            arguments = [a for a in arguments if a.partition("=")[0] != key]
        arguments.append(f"{key}={value}")
        done.append(f"{key}={value!r:.80} ({kind})")
        long = long or (kind == "huge" and bool(_AMOUNTS.search(key)))
    return Request(command, tuple(_safe(a) for a in arguments), ", ".join(done), long)


def _safe(argument: str) -> str:
    """Return the argument, unless it would use the network or call something that is no part."""
    if re.search(r"logger=.*wandb|device=.*cuda|_target_: os", argument):
        return "logger=none"
    return argument


def attack(grounds: Grounds, index: int, rng: random.Random) -> sandbox.Finding:
    """Run one command with wrong options."""
    names, weights = zip(*((name, weight) for name, (_, weight) in PROFILES.items()), strict=True)
    name = rng.choices(names, weights)[0]
    job = grounds.jobs.get(name)
    command = job.command if job else name
    base = job.argv if job else ["out=new", "--cfg", "job"]
    if name == "ask" and rng.random() < 0.3:
        base = [*base, "out=new"]
    asked = request(base, command, rng)
    arguments = list(asked.arguments)
    if job is None and "--cfg" not in arguments:
        arguments += ["--cfg", "job"]
    with grounds.field(job.needs if job else ("in",)) as field:
        bystanders(field)
        from .grounds import held, lost

        before = held(field)
        ended = run(command, arguments, field, long=asked.long)
        losses = lost(before, held(field))
    what = f"{name}: {asked.what}"
    return sandbox.finding("options", index, what, ended, command, losses=losses)


def run(command: str, arguments: Sequence[str], field: Any, *, long: bool) -> sandbox.Ended:
    """Run a command; interrupt a long one, which must then end at once."""
    import signal

    running = sandbox.start(command, arguments, field)
    if long and not running.ended_within(_PATIENCE):
        running.send(signal.SIGINT)
    ended = running.wait()
    for suffix in (".out", ".err"):
        running.output.with_suffix(suffix).unlink()
    return ended


def bystanders(field: Any) -> None:
    """Write files that a wrong path may point at and that must not be lost."""
    import os

    keep = field / "keep"
    keep.mkdir()
    (keep / "notes.txt").write_text("mine\n")
    (field / "link").symlink_to("keep")
    (field / "loop").symlink_to("loop")
    os.mkfifo(field / "fifo")
