"""Scores of existing texts, and the check of an engine's hidden states."""
