"""Starts an agent's Python command as a fork of a process that has loaded its packages.

`interpreters` is the sampler's side. `fork_server` and `fork_client` run in the agent's interpreter, which need not have
Tandem: they need the standard library alone, and not each other.
"""
