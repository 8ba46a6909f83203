"""One training process and its peers: it joins them, uses the store, stops at a signal, and ends after an error."""
