"""Labelled hidden states of articles and questions."""
