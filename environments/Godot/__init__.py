"""Games of Godot 3 with the addon of protocol/clients/godot."""
