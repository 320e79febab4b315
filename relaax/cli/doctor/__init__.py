"""`relaax doctor`: what is wrong with an installation, a configuration and a machine, each in a sentence."""
