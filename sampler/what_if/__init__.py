"""What-if questions that need an engine or scorers: `tandem replay --engine`, `tandem resettle`."""
