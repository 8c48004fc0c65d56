"""A disposable Debian guest under QEMU, without KVM or a network, in which the runner is tried as a user has it.

`image` builds the guest and a checkpoint of it that has booted; `layer` builds the disk with the runner; `machine`
restores the checkpoint; `guest` is what a test holds. `python -m vm.bed` builds, or opens a shell in the guest.
"""
