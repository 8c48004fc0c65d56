"""One JSON-RPC peer over a pair of file descriptors."""
