"""Files that a person writes or is given: JSON, YAML, text, exported data, private folders."""
