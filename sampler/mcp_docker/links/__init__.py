"""One tool server of a set, at either revision: its process or its remote session, and the messages in flight."""
