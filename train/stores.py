"""Feature stores given together: several sites side by side, several sets of texts one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pandas as pd

from probers.store.reader import StateReader
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.types import Site, UserError


@dataclass(frozen=True, slots=True)
class JoinedStores:
    """Stores of one site and other texts, read where they lie as if they were one.

    Attributes:
        stores: finished ones of the same features, in the order of their rows.
    """

    stores: tuple[FeatureStore, ...]

    @property
    def path(self) -> str:
        """The folders, as they are given for ``data``."""
        return f"[{','.join(str(store.path) for store in self.stores)}]"

    @property
    def spec(self) -> FeatureSpec:
        return self.stores[0].spec

    @property
    def config(self) -> Mapping[str, Any]:
        return self.stores[0].config

    def table(self) -> pd.DataFrame:
        """All rows, one store after the other.

        Raises:
            UserError: an id that is in two of the stores, or columns that one of them lacks.
        """
        tables = [store.table() for store in self.stores]
        first, where = self.stores[0], dict.fromkeys(tables[0]["id"], 0)
        for number, table in enumerate(tables[1:], 1):
            path = self.stores[number].path
            if odd := sorted({*map(str, table)} ^ {*map(str, tables[0])}):
                has, lacks = (path, first.path) if odd[0] in table else (first.path, path)
                raise UserError(
                    f"data={has} has the column {odd[0]}, which data={lacks} lacks: make both alike"
                )
            for id in table["id"]:
                if id in where:
                    raise UserError(
                        f"the id {id} is in data={self.stores[where[id]].path} and again in data={path}: "
                        "give every text once"
                    )
                where[id] = number
        return pd.concat(tables, ignore_index=True)

    def reader(self, layers: Sequence[int]) -> StateReader:
        """The states of some layers, in the order of :meth:`table`; see :meth:`FeatureStore.reader`."""
        return StateReader.joined([store.reader(layers) for store in self.stores])


#: What is trained on: one store of a site, or several read as one.
Stored: TypeAlias = FeatureStore | JoinedStores


def by_site(stores: Sequence[FeatureStore]) -> list[Stored]:
    """One store for each site, in the order in which the sites are first given.

    Raises:
        UserError: stores that cannot be trained on together.
    """
    first = stores[0]
    found: dict[Site, list[FeatureStore]] = {}
    for store in stores:
        spec, what, against = store.spec, f"data={first.path}", f"data={store.path}"
        first.spec.check(replace(spec, site=first.spec.site), what=what, against=against)
        others = found.setdefault(spec.site, [])
        for name in ("layers", "dtype") if others else ():
            mine, theirs = getattr(others[0].spec, name), getattr(spec, name)
            if mine != theirs:
                raise UserError(
                    f"data={others[0].path} has {name}={mine!r} and data={store.path} {name}={theirs!r}: "
                    f"stores of one site are read as one, which needs the same {name}"
                )
        others.append(store)
    return [given[0] if len(given) == 1 else JoinedStores(tuple(given)) for given in found.values()]
