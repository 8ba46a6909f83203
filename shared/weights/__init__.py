"""Weight files: checksums, headers, deltas, adapters, buckets, and their assembly to complete weights. No torch."""
