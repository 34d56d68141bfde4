"""Triggers, which decide when to retrieve. A trigger of your own derives from :class:`Trigger`.

Any other class with ``needs`` and ``__call__`` also works, with the defaults for everything else.
"""

from __future__ import annotations

from probers.parts import exporting, exports

from ..protocol import LookAhead, State, Trigger

__all__ = ["LookAhead", "ServedProbing", "State", "Trigger", *exports(__name__)]

__getattr__ = exporting(__name__, ServedProbing=f"{__name__}.rules")
