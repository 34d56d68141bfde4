"""What every command shares: configuration, run folders, and the parts that a configuration names."""
