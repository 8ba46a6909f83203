"""Images where they enter: content blocks and files, their bounds, and the process that decodes them."""
