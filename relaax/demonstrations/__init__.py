"""Demonstrations: recorded episodes as Parquet files, their recorder, and their player."""
