"""Order, chain and run: the one loop over samples, on either side of the link. No torch here."""
