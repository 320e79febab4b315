"""Start processes, keep them alive, and end them."""
