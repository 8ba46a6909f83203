"""What a step reports: its log, the numbers of its tokens, and alarms."""
