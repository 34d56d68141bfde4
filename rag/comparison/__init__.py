"""The command ``probers-compare``: every method on the same questions, on equal terms."""
