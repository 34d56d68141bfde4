"""Builders of labels, from articles and from questions."""
