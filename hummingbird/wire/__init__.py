"""Transport between processes: the channel between the parties, services over gRPC, the meter that counts both."""
