"""What the daemon and the tools both know of the machine: names of keys, who may read a device, what PipeWire has.

Rules here: functions of what they are given; nothing is opened, started or waited for. `voice` and `operate` do that,
each in its own way, and then say the same.
"""
