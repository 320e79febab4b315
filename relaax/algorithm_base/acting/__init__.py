"""Choice of actions: policies of action spaces, masks, exploration, and greedy policies as data."""
