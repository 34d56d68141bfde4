"""Classifiers of questions (Adaptive-RAG): no retrieval, one, or step by step, by the text alone."""
