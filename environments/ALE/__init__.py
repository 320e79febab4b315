"""Games of the Arcade Learning Environment, by rom name or id."""
