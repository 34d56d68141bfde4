"""Scores of texts while they are written, by this package's engines or by other loops."""
