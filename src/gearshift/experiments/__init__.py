"""Many runs compared: strategies with paired seeds, optimizers at growing batches, and plots of both."""
