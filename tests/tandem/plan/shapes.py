"""Shapes of models that were measured: docs/run/gpus.md."""

from tandem.plan.models import ModelShape

ON_AN_H200 = ModelShape(
    name="405M", layers=8, hidden=2048, heads=32, key_heads=16, head_width=64, inner=6144, vocabulary=1024, tied=True
)
