"""The RLX server: one listening process and one worker process per connection."""
