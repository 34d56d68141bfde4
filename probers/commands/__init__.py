"""Machinery of all commands: settings, run folders, and components by name."""
