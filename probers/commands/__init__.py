"""Common machinery of commands: settings, run folders, and components by name."""
