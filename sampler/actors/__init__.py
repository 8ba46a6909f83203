"""Several actors in one episode: who sits where, what each hears, and in which order they speak. Guide: docs/bring/actors.md.

config       actors, rounds, lineups of the sampler; a task's own win
seating      who takes which seat in a slot
speaking     AsyncSampler whose turns are asked by seat, of weights or of API models
rounds       turns by a specification      parallel   drafts at once, then one who combines
"""
