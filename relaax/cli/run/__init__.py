"""`relaax run`: the whole service and its environments on one machine."""
