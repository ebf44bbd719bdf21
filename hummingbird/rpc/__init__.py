"""Calls between processes that are not parties of one session, over gRPC without generated code.

service, client, async_client    a server of named methods; its callers, on threads and on asyncio
admission, security, status      limits on calls, certificates and tokens, errors on the wire
frame                            tensors as bytes
server, signals                  the servers of a program, and their orderly end
telemetry, metrics, spans        their health and log, their figures for Prometheus, and traces of requests
programs, options                server and client programs, and their command-line options
"""

# A stream comes in messages of this size. Measured over a unix socket, 40 MB take 70 ms in messages of 64 KiB,
# 50 ms at 256 KiB, 42 ms at 1 MiB and 47 ms above.
CHUNK = 1 << 20
