"""The audit of a run's database: read only, usable from tests and as `tandem audit RUN`."""
