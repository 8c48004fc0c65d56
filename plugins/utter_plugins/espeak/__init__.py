"""The espeak plugin: speaks a text with the program espeak-ng.

Rules here: `voice` alone knows espeak-ng's options and habits; `service` alone knows the wire. The text goes to the
program's stdin, never onto its command line, where every user could read it.
"""
