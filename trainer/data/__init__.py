"""From the run's documents to one step's rows: choosing groups, reading them, reading ahead."""
