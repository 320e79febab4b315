"""The commands that record episodes and learn from them."""
