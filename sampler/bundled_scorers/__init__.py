"""The scorers that come with the sampler. Guide: `docs/bring/scorers.md`.

text         exact_match, includes, f1                relative      judge_rank, judge_pairs, diversity
mathematics  math, by `maths`, in worker processes    judged        judge_score, judge_rubric
structured   json_schema                              llm_judge     agentcpm
"""
