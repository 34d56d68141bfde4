"""Runs split into parts, made by several processes or machines."""
