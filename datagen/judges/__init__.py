"""Judges of what a model says: is a unit of its answer supported, contradicted, or neither."""
