"""Holding a plugin's process to its permissions: the rules, the wrappers around it, and the proof that they hold."""
