"""Starts an agent's Python command as a fork of a process that has loaded its packages.

`interpreters` is the sampler's side. `fork_server` runs in the agent's interpreter, which need not have Tandem, and
`fork_client` in ours: both need the standard library alone.
"""
