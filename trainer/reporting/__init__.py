"""Reports of a step: its log, its token metrics, and alarms."""
