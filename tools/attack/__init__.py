"""Attack on the commands: wrong options, damaged files, kills, two writers, full disks, lying servers."""
