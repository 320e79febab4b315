"""What workers ask of a shard, whatever their transport: registration, pushes, pulls and reports."""
