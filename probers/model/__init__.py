"""The language model: loading, decoding in batches, scoring, and its hidden states and attention while it runs."""
