"""Readers of files and tables: text, JSON lines, Parquet, Arrow, generated and prepared data, as raw columns."""
