"""Existing texts with labels of others, one line each or in one of the published formats."""

from .base import Mark, Text, TokenLabels, token_labels
from .source import TextSource

__all__ = ["Mark", "Text", "TextSource", "TokenLabels", "token_labels"]
