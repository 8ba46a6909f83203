"""The recording gateway: an agent that was written for an OpenAI, Anthropic or Google endpoint plays an episode, unchanged.

agent ──HTTP, its own dialect──▶ GatewayServer ─▶ dialect ─▶ AttemptSession ─▶ AsyncSampler ─▶ engine, database
                                  key ─▶ session    pure       which thread      token-exact record
"""
