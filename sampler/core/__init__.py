"""The core of a sampler: claim, episode, rendering, parsers, tools, scorers, settlement, history. It knows no tenant.

Rooms, from the ground up; each imports only what stands before it:

    errors  time_limits      what is raised, and how long is waited
    parsers/                 a reply's text → reasoning and tool calls
    rendering/               messages ↔ token ids
    engines/                 client and pool of inference engines
    tools/                   the tools of one episode
    api_models/              judge, browse agent and player behind an API
    scorers/                 an answer → a number
    settlement/              a group → advantages and training data
    episode/                 `AsyncSampler`: one episode, its state, log and outcome
    history/                 context policies
    kinds/                   what a task is played by: MCP tools, ported samplers, forks
    service/                 claims, loops, settling, names of kinds
"""
