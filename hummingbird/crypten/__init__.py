"""Everything that touches CrypTen: its tensors, its functions on our sessions, its repairs and refusals.

adapter         the only import of CrypTen; our randomness in place of its own
communicator    CrypTen's communicator over our channel
fixed_point     repairs of encoding, scales, products and quotients
functions       repairs of comparisons, powers, pools and approximations
tensors         private tensors for users: `cryptensor`
run             starts and stops CrypTen's part of a session: its triples from our dealer, and refusals of functions
that
                are unsafe or impossible here
"""
