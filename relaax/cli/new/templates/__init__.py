"""What `relaax new` writes. Each file works as it stands; its name, as a word in the text, gives way to the new one."""
