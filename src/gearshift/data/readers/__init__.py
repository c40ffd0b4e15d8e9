"""From files and tables to raw columns: text, JSON lines, Parquet, Arrow, generated and prepared data."""
