"""Errors of requests in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probers.types import ProbersError, UserError


@dataclass(eq=False)
class ApiError(Exception):
    """Error in OpenAI's form, with HTTP's ``status`` and the wrong field as ``param``.

    A refused client may retry after ``retry`` seconds.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry: int | None = None

    @classmethod
    def of(cls, error: ProbersError) -> ApiError:
        """Convert one of this package's errors."""
        return cls(400 if isinstance(error, UserError) else 500, str(error))

    @classmethod
    def of_validation(cls, errors: Sequence[Mapping[str, Any]], *before: str) -> ApiError:
        """Describe the first mistake in a request's body; ``before`` are fields around what was checked."""
        first = errors[0]
        if first["type"] == "json_invalid":
            return cls(400, f"the body is not JSON: {first['ctx']['error']}")
        place = [part for part in (*before, *first["loc"]) if part != "body"]
        named = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in place]
        param = "".join(named).removeprefix(".") or None
        if first["type"] == "extra_forbidden":
            return cls(400, f"Unrecognized request argument supplied: {param}", param)
        # If several forms are allowed, the place names a form of this module after the user's field.
        return cls(400, f"{place[0] if place else 'the body'}: {first['msg']}", param)

    def body(self) -> dict[str, Any]:
        """Make the body of the response."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}
