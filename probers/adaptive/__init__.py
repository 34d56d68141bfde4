"""Classifiers of questions (Adaptive-RAG): no retrieval, one, or step by step; from the text alone."""
