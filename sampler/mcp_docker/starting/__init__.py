"""Sets of tool servers, one for each session: started ahead of it, taken by it, and ended."""
