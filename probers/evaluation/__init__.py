"""Evaluation of answers against gold, detectors against labels, and intervals of both."""
