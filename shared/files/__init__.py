"""Reading and writing of users' files: JSON, YAML, text, exported data, private folders."""
