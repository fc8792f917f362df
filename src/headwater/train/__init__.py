"""Training within a budget: small objects that attach to a loop which the user owns."""
