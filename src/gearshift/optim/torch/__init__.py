"""The update rules of this package as `torch.optim` optimizers, for any PyTorch model."""
