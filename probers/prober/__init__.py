"""Trained heads with their decision rule and calibration, and what they say of texts."""
