"""Results of evaluation rounds: pass@1, pass@k and mean reward with confidence intervals."""
