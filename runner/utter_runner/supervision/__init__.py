"""Plugin processes: spawn, handshake, admission, restarts, drain."""
