"""Machinery of commands: settings, components by name, help, run folders, parts and launchers."""
