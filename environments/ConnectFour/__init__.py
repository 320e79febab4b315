"""Connect Four, a game of two players."""
