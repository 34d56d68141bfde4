"""The controlled-knowledge testbed: a fictional world, its texts, and the model that knows a part of it."""
