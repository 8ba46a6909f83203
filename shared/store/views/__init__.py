"""What the viewer reads: bounded questions that use an index, each as a text for Compass and mongosh too."""
