"""Answers against gold, detectors against labels, and intervals of both."""
