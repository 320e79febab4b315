"""`relaax bench`: how fast an experiment is on this machine, part by part."""
