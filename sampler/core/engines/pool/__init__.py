"""The engines that a sampler uses: choice, load, failover, and cross-policy sampling."""
