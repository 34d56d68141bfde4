"""Calibrated probers from labelled hidden states."""
