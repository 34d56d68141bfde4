"""Sphinx directive `command-help`: the keys and components of a command, as `--help` prints them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from probers.cli.help import Help, Key, help_of

#: In a description: a page of this site, or a key with its value.
_MARKED = re.compile(r"docs/(\w+)\.md|[\w.]+=[^\s,;)]*[^\s,;).:]")


def prose(text: str) -> list[nodes.Node]:
    """A description as running text: keys as code, pages as links."""
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


def paragraphs(text: str) -> list[nodes.Node]:
    """A description as paragraphs."""
    return [nodes.paragraph("", "", *prose(" ".join(part.split()))) for part in text.split("\n\n") if part]


def blocks(keys: Iterable[Key]) -> dict[str, list[Key]]:
    """Keys by the block they belong to, "" for those of the command itself."""
    found: dict[str, list[Key]] = defaultdict(list)
    for key in keys:
        found[key.name.rpartition(".")[0].partition(".")[0]].append(key)
    return found


class CommandHelp(SphinxDirective):
    """Everything `--help` says about a command: `{command-help} rag`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the usage, the description, the keys, and a section for each block and group."""
        command = self.arguments[0]
        help_ = help_of(command)
        usage = nodes.literal_block("", f"probers-{command} [key=value ...]", language="bash")
        sections = [
            self.section(block or "Keys", [self.entries(keys, command)])
            for block, keys in blocks(help_.keys).items()
        ]
        return [usage, *paragraphs(help_.about), *sections, *self.components(help_)]

    def components(self, help_: Help) -> Iterator[nodes.Node]:
        """Make a section for the presets, and one for each group of components."""
        command = self.arguments[0]
        if help_.presets:
            methods = [self.names("method", help_.methods)] if help_.methods else []
            yield self.section("experiment", [self.names("experiment", help_.presets), *methods])
        for group, named in help_.groups.items():
            several = self.section(group, [self.names(group, list(named))])
            for name, choice in named.items():
                if choice.about or choice.keys:
                    entries = [self.entries(choice.keys, f"{command}-{group}-{name}")] * bool(choice.keys)
                    several += self.section(f"{group}={name}", [*paragraphs(choice.about), *entries])
            yield several

    def names(self, group: str, names: Sequence[str]) -> nodes.Node:
        """Make the list of names that a key accepts."""
        text: list[nodes.Node] = [nodes.literal("", f"{group}=NAME"), nodes.Text(", one of ")]
        for i, name in enumerate(names):
            text += [nodes.Text(", " if i else ""), nodes.literal("", name)]
        return nodes.paragraph("", "", *text)

    def entries(self, keys: Iterable[Key], prefix: str) -> nodes.Node:
        """Make a list of keys with their defaults, descriptions and values; each key has an anchor."""
        entries = nodes.definition_list(classes=["keys"])
        for key in keys:
            term = nodes.term("", "", nodes.literal("", f"{key.name}={key.default}"))
            anchor = nodes.make_id(f"{prefix}-{key.name}")
            term["ids"].append(anchor)
            self.register(anchor, key.name)
            definition = nodes.definition("", *paragraphs(key.about))
            if key.allowed:
                definition += nodes.paragraph("", "", nodes.Text(f"Values: {key.allowed}"))
            entries += nodes.definition_list_item("", term, definition)
        return entries

    def section(self, title: str, content: Sequence[nodes.Node]) -> nodes.section:
        """Make a section with its title and anchor."""
        section = nodes.section("", nodes.title("", title), *content)
        section["names"].append(nodes.fully_normalize_name(title))
        anchor = nodes.make_id(f"{self.arguments[0]}-{title}")
        section["ids"].append(anchor)
        self.register(anchor, title)
        return section

    def register(self, anchor: str, title: str) -> None:
        """Let any page link to the anchor, as `[text](#anchor)`."""
        self.env.domains.standard_domain.note_hyperlink_target(anchor, self.env.docname, anchor, title)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
