"""One optimizer step of a learner, and the device on which it is computed."""
