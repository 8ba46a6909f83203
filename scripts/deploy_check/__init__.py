"""`python -m scripts.deploy_check`: the Docker Compose deployment, tried on a real engine."""
