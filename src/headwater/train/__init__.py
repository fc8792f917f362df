"""What attaches to a training loop that the user owns."""
