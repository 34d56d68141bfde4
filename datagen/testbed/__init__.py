"""The recipe of the testbed's language model."""
