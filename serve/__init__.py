"""Scores for what others ask and write: texts that exist already, and whether an engine's states are ours."""
