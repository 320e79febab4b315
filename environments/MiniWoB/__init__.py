"""Tasks of MiniWoB++ in Chromium, by name."""
