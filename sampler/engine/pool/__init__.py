"""The engines that a sampler sends requests to: choice, load, failover, and cross-policy sampling."""
