"""How the tables came to be as they are, a file per step in `versions`; run by `migrating`."""
