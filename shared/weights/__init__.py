"""Weight files: checksums, headers, deltas, adapters, buckets, and complete weights from any of them. No torch."""
