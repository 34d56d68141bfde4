"""Classifiers of questions (Adaptive-RAG): their labels, and how they are trained and measured."""
