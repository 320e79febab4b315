"""The bytes of RLX: frames, and the codecs of messages and spaces.

Begin with `codecs`, which has the two codecs of a connection; `framing` cuts the stream into frames.
"""
