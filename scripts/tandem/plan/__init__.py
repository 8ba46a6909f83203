"""`tandem plan`: what a step of a run costs on this machine, and settings that fit it, before anything starts."""
