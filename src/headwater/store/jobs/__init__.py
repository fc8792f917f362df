"""Work that a store does by itself and that outlives its process: records, a runner, what each kind does."""
