"""Comparison of retrieval triggers on the same questions, on equal terms."""
