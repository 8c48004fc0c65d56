"""Asking a person before something consequential happens."""
