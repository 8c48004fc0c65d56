"""What is done to an installation, rather than with it: plugin packages come, change and go, and so do models.

Rules here: no loop, because a person waits for it in a terminal; nothing but `models` speaks to other machines; what is
in place is whole at every moment, also when the process is killed; nothing that came from elsewhere is believed, and
nothing of it is run.
"""
