"""What is done to an installation, rather than with it: plugin packages are put in place, updated and removed, and the
files of models are fetched.

Rules here: no loop, because a person waits for it in a terminal; nothing but `models` speaks to other machines; what is
in place is whole at every moment, also when the process is killed; nothing that came from elsewhere is believed, and
nothing of it is run.
"""
