"""Templates of `relaax new`. Each file works unchanged. Its name, as a word in the text, is replaced by the new one."""
