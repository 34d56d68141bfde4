"""The directive `command-help`: every key of a command, as `--help` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from probers.commands.help import Help, Key, help_of

#: In a description: a page of this site, or text to be typed.
_MARKED = re.compile(r"docs/(\w+)\.md|[\w.]+=[^\s,;)]*[^\s,;).:]")


def said(text: str) -> list[nodes.Node]:
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
    """A description in paragraphs."""
    return [nodes.paragraph("", "", *said(" ".join(part.split()))) for part in text.split("\n\n") if part]


class CommandHelp(SphinxDirective):
    """The help of a command: `{command-help} rag`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The usage, what the command does, its keys, and the choices of each component."""
        command = self.arguments[0]
        told = help_of(command)
        usage = nodes.literal_block("", f"probers-{command} [key=value ...]", language="bash")
        keys = self.section("Keys", self.entries(told.keys, command))
        return [usage, *paragraphs(told.about), keys, *self.components(told)]

    def components(self, told: Help) -> Iterator[nodes.Node]:
        """A section for each group of components."""
        if told.presets:
            methods = self.names("method", told.methods) if told.methods else []
            yield self.section("experiment", self.names("experiment", told.presets) + methods)
        for group, named in told.groups.items():
            several = self.section(group, self.names(group, list(named)))
            for name, choice in named.items():
                if choice.about or choice.keys:
                    prefix = f"{self.arguments[0]}-{group}-{name}"
                    content = paragraphs(choice.about) + self.entries(choice.keys, prefix)
                    several += self.section(f"{group}={name}", content)
            yield several

    def names(self, group: str, names: Sequence[str]) -> list[nodes.Node]:
        """The sentence that lists the names of a group."""
        text: list[nodes.Node] = [nodes.literal("", f"{group}=NAME"), nodes.Text(", one of ")]
        for i, name in enumerate(names):
            text += [nodes.Text(", " if i else ""), nodes.literal("", name)]
        return [nodes.paragraph("", "", *text)]

    def entries(self, keys: Sequence[Key], prefix: str) -> list[nodes.Node]:
        """Keys as a list of terms, each of which can be linked to."""
        found = nodes.definition_list(classes=["keys"])
        for key in keys:
            term = nodes.term("", "", nodes.literal("", f"{key.name}={key.default}"))
            anchor = nodes.make_id(f"{prefix}-{key.name}")
            term["ids"].append(anchor)
            self.known(anchor, key.name)
            about = f"{key.about} ({key.allowed})" if key.allowed else key.about
            definition = nodes.definition("", nodes.paragraph("", "", *said(" ".join(about.split()))))
            found += nodes.definition_list_item("", term, definition)
        return [found] if keys else []

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
