"""Forks of one process that has loaded what they need: an agent's script, a bundled tool, or a bundled tool that is alone.

server      the forks of a process, and the program that forks scripts    ┐ in the process that forks; the first two need
client      stands for a script that runs as a fork                       │ Python 3.10 and its library alone
tools       the program that forks tools, confined as `shared.sandbox`    ┘
processes   starts tools as forks                                           in the gateway of tools
"""
