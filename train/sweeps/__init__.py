"""Several trainings in one command: subsets of texts and layers, transfer between stores, and a search."""
