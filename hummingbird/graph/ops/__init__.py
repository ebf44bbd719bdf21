"""Operations of nets: how torch's modules, functions and methods become steps."""
