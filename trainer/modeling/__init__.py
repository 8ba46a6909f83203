"""The model: loaded, made trainable, cut over processes, and forwarded over rows of trees."""
