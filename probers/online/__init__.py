"""Scores of texts while they are written: by our engines, and by other people's loops."""
