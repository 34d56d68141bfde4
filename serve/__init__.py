"""Servers that write where an answer is probably wrong beside it."""
