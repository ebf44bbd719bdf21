"""Programs run from the repository root: training, private inference under torchrun, benchmarks."""
