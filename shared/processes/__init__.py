"""Local processes: the embedded MongoDB server, child processes, Ctrl-C, hiding secrets from other processes."""
