"""Sessions by id and by episode: their calls, what their servers offer, and which server answers a request."""
