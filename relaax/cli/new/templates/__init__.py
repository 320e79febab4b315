"""Templates of `relaax new`. Each file works as it is; its name, as a word in the text, is replaced by the new one."""
