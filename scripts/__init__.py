"""Programs run from the repository root: training, private inference between parties, benchmarks."""
