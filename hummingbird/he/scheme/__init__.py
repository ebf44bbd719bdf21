"""The encryption scheme: parameters and their security, keys and ciphertexts, packing, noise, masked answers."""
