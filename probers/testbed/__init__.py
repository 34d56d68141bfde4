"""The controlled-knowledge testbed: a fictional world, its texts, and a model that knows a part of it."""
