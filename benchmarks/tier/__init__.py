"""What the benchmarks of the disk tier share: traces, memory limits, and the row path on our store and on its peers."""
