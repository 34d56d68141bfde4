"""Scores of a prober from vLLM: model, worker and endpoints as plug-ins, and the command that starts it."""
