"""Answers over HTTP as OpenAI's API gives them, with where each is probably wrong, and the page that shows it."""
