"""Scores while serving: the server and its page, texts that exist already, other engines."""
