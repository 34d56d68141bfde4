"""The directive `command-help`: every key of a command, from the comments of its YAML files.

What `--help` prints and what a page shows is read by one function, `probers.commands.help.help_of`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from probers.commands.help import Help, help_of

_KEY = re.compile(r"""( *)([\w.]+):(?: +((?:"(?:[^"\\]|\\.)*"|[^#])*?))?(?:\s+#\s*(.*))?$""")
_COMMENT = re.compile(r" *#+ ?(.*)$")
#: In a comment: a page of this site, or what is typed as it stands.
_MARKED = re.compile(r"docs/(\w+)\.md|[\w.]+=[^\s,;)]*[^\s,;).:]")


@dataclass
class Key:
    """A key of a YAML file: its default, its comment, and the lines below it."""

    name: str
    default: str
    comment: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)


def keys(lines: Sequence[str]) -> Iterator[Key]:
    """The keys of a file that stand furthest to the left, each with what belongs to it.

    A comment on a line of its own is of the key after it at the margin, of the key before it elsewhere.
    """
    lines = [line for line in lines if line.strip()]
    margin = min((len(m[1]) for m in map(_KEY.match, lines) if m), default=0)
    key, before = None, list[str]()
    for line in lines:
        found, comment = _KEY.match(line), _COMMENT.match(line)
        if comment and not found:
            if len(line) - len(line.lstrip()) <= margin:
                before.append(comment[1])
            elif key is not None:
                (key.below if key.below else key.comment).append(line.strip() if key.below else comment[1])
        elif found and len(found[1]) == margin:
            if key is not None:
                yield key
            key = Key(found[2], (found[3] or "").strip(), [*before, *([found[4]] if found[4] else [])])
            before = []
        elif key is not None:
            key.below.append(line)
    if key is not None:
        yield key


def said(text: str) -> list[nodes.Node]:
    """A comment as running text: keys as code, pages as links."""
    found: list[nodes.Node] = []
    end = 0
    for match in _MARKED.finditer(text):
        found.append(nodes.Text(text[end : match.start()]))
        if match[1]:
            link = addnodes.pending_xref(
                "", nodes.inline("", match[0]), refdomain="std", reftype="doc", reftarget=f"/{match[1]}",
                refexplicit=False, refwarn=True,
            )  # fmt: skip
            found.append(link)
        else:
            found.append(nodes.literal("", match[0]))
        end = match.end()
    return [*found, nodes.Text(text[end:])]


class CommandHelp(SphinxDirective):
    """All that a command's YAML files say: `{command-help} rag`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The usage, what the command does, its keys, and the choices of each part."""
        command = self.arguments[0]
        told = help_of(command)
        usage = nodes.literal_block("", f"probers-{command} [key=value ...]", language="bash")
        return [
            usage,
            *self.about(told),
            self.section("Keys", self.entries(told.keys, command)),
            *self.parts(told),
        ]

    def about(self, told: Help) -> list[nodes.Node]:
        """The head of the command's file, a paragraph."""
        return [nodes.paragraph("", "", *said(" ".join(told.about)))]

    def parts(self, told: Help) -> Iterator[nodes.Node]:
        """A section for each group of choices."""
        command = self.arguments[0]
        if told.presets:
            names = self.names("experiment", told.presets) + (
                self.names("method", told.methods) if told.methods else []
            )
            yield self.section("experiment", names)
        for group, files in told.groups.items():
            if list(files) == ["default"]:
                named = [re.sub(r"^(\w+):", rf"{group}.\1:", line) for line in files["default"]]
                yield self.section(group, self.entries(named, command))
            elif files:
                several = self.section(group, self.names(group, list(files)))
                for name, lines in files.items():
                    lines = [line for line in lines if "_target_" not in line or "???" in line]
                    several += self.section(
                        f"{group}={name}", self.choice(lines, f"{command}-{group}-{name}")
                    )
                yield several

    def names(self, group: str, names: Sequence[str]) -> list[nodes.Node]:
        """One of these names is given."""
        text: list[nodes.Node] = [nodes.literal("", f"{group}=NAME"), nodes.Text(", one of ")]
        for i, name in enumerate(names):
            text += [nodes.Text(", " if i else ""), nodes.literal("", name)]
        return [nodes.paragraph("", "", *text)]

    def choice(self, lines: Sequence[str], prefix: str) -> list[nodes.Node]:
        """The keys of one choice, and above them what its comment says of the whole."""
        head = 0
        while head < len(lines) and lines[head].startswith("#"):
            head += 1
        found: list[nodes.Node] = []
        if head:
            found.append(nodes.paragraph("", "", *said(" ".join(line.lstrip("# ") for line in lines[:head]))))
        return found + (self.entries(lines[head:], prefix) if any(map(_KEY.match, lines[head:])) else [])

    def entries(self, lines: Sequence[str], prefix: str) -> list[nodes.Node]:
        """Keys as a list of terms, each of which can be linked to."""
        found = nodes.definition_list(classes=["keys"])
        for key in keys(lines):
            term = nodes.term("", "", nodes.literal("", f"{key.name}: {key.default}".rstrip(": ")))
            anchor = nodes.make_id(f"{prefix}-{key.name}")
            term["ids"].append(anchor)
            self.known(anchor, key.name)
            definition = nodes.definition()
            if key.comment:
                definition += nodes.paragraph("", "", *said(" ".join(key.comment)))
            if any("#" in line for line in key.below) and not key.default:
                definition += self.entries(key.below, f"{prefix}-{key.name}")
            elif key.below:
                definition += nodes.literal_block("", "\n".join(key.below), language="yaml")
            found += nodes.definition_list_item("", term, definition)
        return [found]

    def section(self, title: str, content: Sequence[nodes.Node]) -> nodes.section:
        """A section with its title and anchor."""
        found = nodes.section("", nodes.title("", title), *content)
        found["names"].append(nodes.fully_normalize_name(title))
        anchor = nodes.make_id(f"{self.arguments[0]}-{title}")
        found["ids"].append(anchor)
        self.known(anchor, title)
        return found

    def known(self, anchor: str, title: str) -> None:
        """Have the anchor linked to from any page, as `[text](#anchor)`."""
        self.env.domains.standard_domain.note_hyperlink_target(anchor, self.env.docname, anchor, title)


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directive known."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
