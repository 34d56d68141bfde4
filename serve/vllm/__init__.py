"""Scores of a prober from vLLM, by plug-ins."""
