"""OpenAI's client for any server of its API; it checks responses and tells failures in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..types import RunError, UserError, first_line

if TYPE_CHECKING:
    from openai import OpenAI

_LONGEST = 200  # characters shown of a server's message
_Body = TypeVar("_Body", bound=BaseModel)


class NotThere(UserError):
    """Error of status 404."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of OpenAI's API, as messages name it.

    Attributes:
        option: option that chose it, such as "engine".
        url: its address, which ends with ``/v1``.
        fewer: option that lowers the number of concurrent requests.
    """

    option: str
    url: str
    fewer: str

    @property
    def name(self) -> str:
        """The server as the user typed it."""
        return f"{self.option}={self.url}"

    def client(self, **options: Any) -> OpenAI:
        """Make the client, with the key of the environment's OPENAI_API_KEY; UserError without openai."""
        try:
            import openai
        except ImportError as error:
            problem = f'{self.name} needs openai: pip install "probers[remote]"'
            raise UserError(problem, "missing-extra") from error
        return openai.OpenAI(base_url=self.url, api_key=os.environ.get("OPENAI_API_KEY") or "-", **options)

    def read(self, kind: type[_Body], answer: Any) -> _Body:
        """Check a response (RunError)."""
        try:
            return kind.model_validate(answer.model_dump(warnings=False))
        except ValidationError as error:
            problem = error.errors()[0]
            why = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        except (AttributeError, TypeError):  # the client passes on wrong types
            why = "no JSON"
        message = f"{self.name} does not answer as OpenAI's API does ({why}): correct the address"
        raise RunError(message, "server")

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Turn a refusal (UserError) or failure (RunError) of the server into one sentence."""
        import openai

        kind: type[UserError | RunError] = UserError
        code: Any = "server"
        try:
            yield
            return
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            another = "another" if os.environ.get("OPENAI_API_KEY") else "a"
            problem = f"asks for {another} key: set OPENAI_API_KEY ({_reply(error)})"
        except openai.NotFoundError as error:
            kind, problem = NotThere, f"has no such model or address, which ends in /v1 ({_reply(error)})"
        except openai.RateLimitError as error:
            kind, remedy = RunError, f"run it later, or with a smaller {self.fewer}"
            problem = f"is too busy: {remedy} ({_reply(error)})"
        except openai.APIConnectionError as error:
            kind, code, why = RunError, "network", first_line(error.__cause__ or error)
            problem = f"cannot be reached: start the server or correct the address ({why})"
        except openai.APIStatusError as error:
            kind = RunError if error.status_code >= 500 else UserError
            problem = f"answers with status {error.status_code}: {_reply(error)}"
        except (openai.APIError, JSONDecodeError, UnicodeDecodeError) as error:
            kind, problem = RunError, f"does not answer as OpenAI's API does: {first_line(error)}"
        raise kind(f"{self.name} {problem}", code)


def _reply(error: Any) -> str:
    message = error.body.get("message") if isinstance(error.body, dict) else None
    return " ".join(str(message or error.body or error.message).split())[:_LONGEST]
