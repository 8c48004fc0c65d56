"""The unix socket: who may connect, and the client API."""
