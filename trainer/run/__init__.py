"""A trainer's part in its run: take-over, activity, rounds of evaluation, and the documents of its start and end."""
