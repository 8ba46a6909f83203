"""What-if questions about stored episodes: what `tandem replay`, `bisect`, `resettle` and `fork` share."""
