"""A cluster on paper: how fast its workers are, what disturbs them, what its links carry. No torch, no clock."""
