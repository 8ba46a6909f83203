"""The rules of a run: what decides what is learned from its episodes. Each section is a module, read from `run_rules`."""
