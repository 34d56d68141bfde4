"""Scores while serving: the server and its page, scoring of existing texts, other engines."""
