"""Feature stores joined in place: several sites side by side, several sets of texts one after the other."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..types import Beside, Site, UserError
from .reader import StateReader
from .spec import FeatureSpec
from .store import FeatureStore

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JoinedStores:
    """Finished stores of one feature and different texts, read in place as one, in their order."""

    stores: tuple[FeatureStore, ...]

    @property
    def path(self) -> str:
        return f"[{','.join(str(store.path) for store in self.stores)}]"

    @property
    def called(self) -> str:
        """Names of the stores in messages."""
        return f"data={self.path}"

    @property
    def spec(self) -> FeatureSpec:
        return self.stores[0].spec

    @property
    def config(self) -> Mapping[str, Any]:
        return self.stores[0].config

    def table(self) -> pd.DataFrame:
        """Read all rows; UserError for an id in two of the stores, or columns that one of them lacks."""
        import pandas as pd

        tables = [store.table() for store in self.stores]
        known: dict[str, Path] = {}
        for store, table in zip(self.stores, tables, strict=True):
            if odd := sorted({*map(str, table)} ^ {*map(str, tables[0])}):
                pair = (store.path, self.stores[0].path)
                has, lacks = pair if odd[0] in table else pair[::-1]
                raise UserError(f"data={has} has the column {odd[0]}, which data={lacks} lacks", "mismatch")
            for name in table["id"]:
                if name in known:
                    message = f"{known[name]} and {store.path} both have the id {name}"
                    raise UserError(f"{message}: give every text once", "overlap")
                known[name] = store.path
        return pd.concat(tables, ignore_index=True)

    def reader(self, layers: Sequence[int]) -> StateReader:
        return StateReader.joined([store.reader(layers) for store in self.stores])


def chosen(
    stores: Sequence[FeatureStore], pool: str | None, sites: Sequence[str] | None
) -> list[FeatureStore]:
    """List each store once for every site, reading its feature of one pool; UserError if one is absent.

    The default is the pool of the first store's first feature, and all sites of each store for it.
    """
    first = stores[0]
    taken = pool or first.spec.pool
    others = dict.fromkeys(spec.pool for spec in first.features if spec.pool != taken)
    if pool is None and others:
        message = "pool=%s is trained on, the first that %s has; others: %s"
        log.info(message, taken, first.path, ", ".join(others))
    selected = []
    for store in stores:
        there = [spec for spec in store.features if spec.pool == taken]
        if not there and pool is None:
            selected.append(store)  # by_site names the difference
            continue
        # Without sites those of one width, since training needs equal widths.
        wanted = [s.site for s in there if (s.width == there[0].width if sites is None else s.site in sites)]
        places: Sequence[str | None] = wanted or sites or [None]
        selected += [store.feature(pool=taken, site=site) for site in places]
    for site in sites or ():
        if all(site != store.spec.site for store in selected):
            first.feature(pool=taken, site=site)
    return selected


#: One store of a site, or several read as one.
Stored: TypeAlias = FeatureStore | JoinedStores


class Sources(NamedTuple):
    """Stores by site, and by kind those of inputs beside their states."""

    stores: list[Stored]
    beside: list[Stored]

    @classmethod
    def of(
        cls, stores: Sequence[FeatureStore], pool: str | None, sites: Sequence[str] | None,
        beside: Sequence[Beside],
    ) -> Sources:  # fmt: skip
        """Read stores like :func:`chosen`, and the inputs ``beside`` them; UserError if these are missing."""
        main = [store for store in stores if not {spec.site for spec in store.features} <= {*beside}]
        joined = by_site(chosen(main or stores, pool, sites))
        return cls(joined, [of_site(stores, joined[0].spec.pool, kind) for kind in beside])


def of_site(stores: Sequence[FeatureStore], pool: str, site: Site) -> Stored:
    """Read the stores with a pool and site as one; UserError if none has them."""
    having = [store for store in stores if any((s.pool, s.site) == (pool, site) for s in store.features)]
    (joined,) = by_site(chosen(having or stores[:1], pool, [site]))  # the first one reports what is absent
    return joined


def by_site(stores: Sequence[FeatureStore]) -> list[Stored]:
    """Join stores to one for each site, in the order of the first of each; UserError if they differ."""
    first = stores[0]
    sites: dict[Site, list[FeatureStore]] = {}
    for store in stores:
        spec, what, against = store.spec, f"data={first.path}", f"data={store.path}"
        first.spec.check(replace(spec, site=first.spec.site), what=what, against=against)
        alike = sites.setdefault(spec.site, [])
        alike.append(store)
        alike[0].spec.check(spec, what=f"the features of {alike[0].path}", against=f"those of {store.path}")
        for name in ("layers", "dtype"):
            mine, theirs = getattr(alike[0].spec, name), getattr(spec, name)
            if mine != theirs:
                message = f"{alike[0].path} has {name}={mine!r}, {store.path} {name}={theirs!r}"
                raise UserError(f"{message}: only stores of the same {name} can be joined", "mismatch")
    return [alike[0] if len(alike) == 1 else JoinedStores(tuple(alike)) for alike in sites.values()]
