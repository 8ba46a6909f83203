"""The commands of `tandem`, each in a file of its own (`application.py` has the list)."""
