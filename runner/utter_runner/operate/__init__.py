"""What is done to an installation, rather than with it: plugin packages, models and units are put in place.

What systemd and its journal are told lies here, too.

Rules here: no socket to the runner, and no loop but for `reporting`, which runs in the daemon's; nothing but `models`
speaks to other machines; what is in place is whole at every moment, also when the process is killed; nothing that
came from elsewhere is believed, and nothing of it is run.
"""
