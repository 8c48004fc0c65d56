"""The only way to an action: decide, confirm, decide again, invoke."""
