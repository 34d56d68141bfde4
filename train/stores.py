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


def chosen(
    stores: Sequence[FeatureStore], pool: str | None, sites: Sequence[str] | None
) -> list[FeatureStore]:
    """Stores as they are trained on: each once for every site, read as its feature of one pool.

    What was not asked for is told where a store has several.

    Args:
        stores: finished ones.
        pool: which; None is that of the first store's first feature.
        sites: which; None are all that a store has for the pool.

    Raises:
        UserError: a pool or site that is not there.
    """
    first = stores[0]
    taken = pool or first.spec.pool
    others = [name for name in dict.fromkeys(spec.pool for spec in first.features) if name != taken]
    if pool is None and others:
        print(f"pool={taken} is trained on, the first that {first.path} has; others: {', '.join(others)}")
    found = []
    for store in stores:
        there = [spec.site for spec in store.features if spec.pool == taken]
        if not there and pool is None:
            found.append(store)  # by_site says in what it differs
            continue
        # Vectors of one width alone are trained on together.
        width = next((spec.width for spec in store.features if spec.pool == taken), 0)
        alike = [spec.site for spec in store.features if spec.pool == taken and spec.width == width]
        wanted = [site for site in there if (site in alike if sites is None else site in sites)]
        asked: Sequence[str | None] = wanted or sites or [None]
        found += [store.feature(pool=taken, site=site) for site in asked]
    for site in sites or ():
        if all(site != store.spec.site for store in found):
            first.feature(pool=taken, site=site)
    return found


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
