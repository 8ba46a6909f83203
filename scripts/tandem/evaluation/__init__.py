"""Reports of evaluations: league tables, and whether what is trained is a fair share of what was sampled."""
