"""Users' code: loading it, locating its errors, checking its task metadata."""
