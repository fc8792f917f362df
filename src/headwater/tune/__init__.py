"""A model kept fresh over the stores that hold the data: fine-tune a head, relabel with it."""
