"""Programs around the services, run from the repository root: the launcher, benchmarks, set-up."""
