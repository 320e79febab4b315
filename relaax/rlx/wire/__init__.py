"""Bytes and what they stand for: frames, codecs of messages and of spaces."""
