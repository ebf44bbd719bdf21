"""The workload ml-inference of the FHE Benchmarking Suite: a submission that its harness runs unchanged."""
