"""Task files: line format, mixing, import, and checks that a run's samplers can play the tasks."""
