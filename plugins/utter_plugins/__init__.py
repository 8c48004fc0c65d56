"""The plugins that ship with utter-runner. Each is a program of its own; nothing imports another."""
