"""Products of a server's polynomials with a client's encrypted ring elements, exact modulo 2^k: BFV."""
