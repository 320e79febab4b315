"""`relaax plan`: what machines a number of environments needs, and what breaks first."""
