"""HTTP servers: one for applications of ASGI, one for pages of figures, and what both grant their clients."""
