"""Existing texts with labels of others, one line each or in one of the published formats."""

from .base import Mark, Outside, Text, TokenLabels, Unit, token_labels
from .source import TextSource

__all__ = ["Mark", "Outside", "Text", "TextSource", "TokenLabels", "Unit", "token_labels"]
