"""What ``--help`` prints: the configuration files, whose comments are the help."""

from __future__ import annotations

import itertools
import re
from importlib import resources

from .config import choices, methods, presets, text_of

_FLAGS = """\
Flags:
  --help       this text
  --cfg job    print the resolved configuration and stop
  -m           run every combination of comma-separated values (key=a,b) and compare them"""


def help_text(command: str) -> str:
    """The help of a command: its configuration file, whose comments explain every key."""
    configs = resources.files("probers.configs")
    lines = configs.joinpath(f"{command}.yaml").read_text(encoding="utf-8").splitlines()
    about = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    body = lines[len(about) :]
    groups = sorted(
        {m[1] for line in body if (m := re.match(r"\s+- (?:override /|/)?(\w+)(?:@\w+)?: ", line))}
    )
    # The defaults list is Hydra's business; its choices are shown in words below.
    if "defaults:" in body:
        start = body.index("defaults:")
        end = start + 1
        while end < len(body) and (body[end].startswith((" ", "-")) or not body[end].strip()):
            end += 1
        body = body[:start] + body[end:]
    parts = [f"Usage: probers-{command} [key=value ...]", ""]
    parts += [line.lstrip("# ") for line in about]
    parts += ["", "Keys with their defaults:", *(f"  {line}".rstrip() for line in body if line.strip())]
    for group in groups:
        if group == "experiment":  # names only: each is a whole configuration
            parts += ["", f"experiment=NAME, one of: {', '.join(presets(command))}"]
            if methods(command):
                parts += [f"  with method=NAME, one of: {', '.join(methods(command))}"]
            continue
        names = choices(group)
        if names == ["default"]:  # a plain block of keys that several commands share
            text = configs.joinpath(group).joinpath("default.yaml").read_text(encoding="utf-8")
            parts += ["", *(f"  {group}.{line}" for line in text.splitlines())]
        elif names:
            parts += ["", f"{group}=NAME, one of: {', '.join(names)}"]
            for name in names if len(names) < 30 else []:
                text = text_of(group, name)
                keys = [x for x in text.splitlines() if x.strip() and "_target_" not in x]
                parts += [f"  {group}={name}", *(f"    {line}" for line in keys)]
    return "\n".join([*parts, "", _FLAGS])
