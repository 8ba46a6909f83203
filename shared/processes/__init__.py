"""Processes of this machine: the embedded MongoDB server, child processes, Ctrl-C, concealed memory."""
