"""The process that shows the curves of a training in the browser."""
