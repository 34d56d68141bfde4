"""Trained heads with their decision rule and calibration, as one frozen object."""
