"""The language model: loading, decoding, scoring, and its states and attention while it runs."""
