"""Code of a user: loading it, finding the line of its mistakes, checking its part of a task."""
