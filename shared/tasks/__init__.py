"""Task files: what a line may hold, how files are mixed and imported, and whether the samplers of a run can play a task."""
