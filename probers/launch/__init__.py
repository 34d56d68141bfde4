"""A run's parts, driven over several processes or machines."""
