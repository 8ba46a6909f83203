"""What engine programs share to take new weights: the check of a folder, and groups of torch.distributed."""
