"""What-if questions that need the trainer's forward: `tandem replay` on kept weights, `tandem bisect`."""
