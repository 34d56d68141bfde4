"""Options of a class, read from its source, since importing every trigger and head would load torch first.

An option is a field of a dataclass or a keyword parameter of ``__init__`` that has a default, a literal or a
constant; its description is the text below the field, or its entry under ``Attributes:`` or ``Args:``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

#: Types of values in a configuration.
_WRITTEN = {
    "str", "int", "float", "bool", "list", "tuple", "dict", "Mapping", "Literal", "Annotated", "Component",
}  # fmt: skip
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a class, with its type as in the source."""

    name: str
    default: Any
    type: str
    about: str

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a ``Literal`` annotation, null last; empty for any other annotation."""
        found = re.fullmatch(r"Literal\[(.*)\]( \| None)?", self.type)
        return (*ast.literal_eval(f"({found[1]},)"), *(["null"] if found[2] else [])) if found else ()


@dataclass(frozen=True, slots=True)
class Signature:
    """A class as in its source: its docstring without sections, and its options."""

    about: str
    options: tuple[Option, ...]

    @property
    def defaults(self) -> dict[str, Any]:
        return {option.name: option.default for option in self.options}


@cache
def signature(target: str) -> Signature:
    """Read the signature of a class of this package by its dotted path."""
    module, _, name = target.rpartition(".")
    node, where = _find(module, name)
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    options: dict[str, Option] = {}
    for option in _options(node, where):
        before = options.get(option.name, option)  # of a base class whose default differs here
        options[option.name] = replace(option, about=option.about or before.about)
    return Signature(text.split("\n\nAttributes:")[0].split("\n\nArgs:")[0], tuple(options.values()))


@cache
def _module(name: str) -> ast.Module:
    path = _PACKAGE.joinpath(*name.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


@cache
def _names(module: str) -> dict[str, ast.ClassDef | ast.expr | tuple[str, str]]:
    """Map the names of a module to a class, an assigned value, or the module and name of an import."""
    found: dict[str, ast.ClassDef | ast.expr | tuple[str, str]] = {}
    for statement in _module(module).body:
        for node in statement.body if isinstance(statement, ast.If) else [statement]:  # if TYPE_CHECKING
            if isinstance(node, ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                source = _absolute(module, node)
                found |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=True)
                    found |= {each.id: value for each, value in pairs if isinstance(each, ast.Name)}
    return found


def _find(module: str, name: str) -> tuple[ast.ClassDef, str]:
    """Find a class and its module, through imports; LookupError if there is none."""
    found = _names(module).get(name)
    if isinstance(found, tuple):
        return _find(*found)
    if isinstance(found, ast.ClassDef):
        return found, module
    raise LookupError(f"{module} has no class {name}")


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return str(node.module)
    is_package = _PACKAGE.joinpath(*module.split(".")[1:]).is_dir()
    above = module.split(".")[: len(module.split(".")) - node.level + is_package]
    return ".".join([*above, *([node.module] if node.module else [])])


def _options(node: ast.ClassDef, module: str) -> Iterator[Option]:
    """List options of a class, those of its bases first."""
    told = _told(ast.get_docstring(node) or "")
    own = list(_fields(node, module) if _is_dataclass(node) else _parameters(node, module))
    for base in reversed(node.bases):
        if isinstance(base, ast.Name):
            try:
                found = _find(module, base.id)
            except (LookupError, OSError):  # not of this package
                continue
            if _is_dataclass(node) or not own:
                for option in _options(*found):
                    yield replace(option, about=told.get(option.name, option.about))
    for option in own:
        yield replace(option, about=option.about or told.get(option.name, ""))


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _fields(node: ast.ClassDef, module: str) -> Iterator[Option]:
    """List fields of a dataclass that its constructor takes and that have a default; others are its input."""
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, annotation = statement.target.id, _resolved(statement.annotation, module)
        if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "InitVar":
            annotation = annotation.slice
        if name.startswith("_") or statement.value is None or not _is_written(annotation, module):
            continue
        about = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            about = inspect.cleandoc(str(following.value.value))
        yield Option(name, _default(statement.value, module), ast.unparse(annotation), about)


def _parameters(node: ast.ClassDef, module: str) -> Iterator[Option]:
    """List keyword-only parameters of a constructor."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            given = statement.args
            for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
                annotation = _resolved(argument.annotation or ast.Constant(None), module)
                if default is not None and _is_written(annotation, module):
                    yield Option(argument.arg, _default(default, module), ast.unparse(annotation), "")


def _is_written(annotation: ast.expr, module: str) -> bool:
    """Tell whether a configuration can hold a value of this type, unlike a loaded corpus."""
    node = _resolved(annotation, module)
    if isinstance(node, ast.BinOp):  # a | b
        return any(_is_written(member, module) for member in (node.left, node.right))
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node) in _WRITTEN


def _resolved(node: ast.expr, module: str) -> ast.expr:
    """Return an annotation with aliases of types replaced."""
    found = _constant(node, module) if isinstance(node, ast.Name) else None
    return found if isinstance(found, (ast.Subscript, ast.BinOp)) else node


def _default(node: ast.expr, module: str) -> Any:
    """Return the value of a default: a literal, a constant, or the argument of ``field``."""
    found: ast.expr | None = node
    if isinstance(found, ast.Call):
        given = {k.arg: k.value for k in found.keywords}
        found = given.get("default", given.get("default_factory"))
    if isinstance(found, ast.Lambda):
        found = found.body
    if isinstance(found, (ast.Name, ast.Attribute)):
        found = _constant(found, module)
    if found is None or isinstance(found, ast.Call):  # such as a class, or a file of values
        return None
    value = ast.literal_eval(found)
    return list(value) if isinstance(value, tuple) else value


def _constant(node: ast.expr, module: str) -> ast.expr | None:
    """Return the value that a module, or one it imports from, assigns to a name; None without one."""
    name, _, inner = ast.unparse(node).partition(".")  # a name with a dot belongs to an imported module
    found = _names(module).get(name)
    if isinstance(found, tuple):
        source, imported = found
        if not source.startswith("probers"):
            return None
        place = (ast.Name(inner), f"{source}.{imported}") if inner else (ast.Name(imported), source)
        return _constant(*place)
    return found if isinstance(found, ast.expr) else None


def _told(docstring: str) -> dict[str, str]:
    """Parse descriptions under ``Attributes:`` and ``Args:`` of a docstring in Google's style."""
    found: dict[str, str] = {}
    for section in re.findall(
        r"^(?:Attributes|Args):\n((?:^ +.*\n?|^\n)+)", inspect.cleandoc(docstring), re.M
    ):
        for entry in re.split(r"\n(?=\w)", inspect.cleandoc(section)):
            name, _, text = entry.partition(":")
            for each in name.split(", "):
                found[each.strip()] = " ".join(text.split())
    return found
