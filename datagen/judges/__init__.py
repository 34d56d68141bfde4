"""Judges of a model's statements: they call a unit of an answer supported, contradicted, or neither."""
