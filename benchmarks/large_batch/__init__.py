"""The parts of bench_large_batch."""
