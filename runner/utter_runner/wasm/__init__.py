"""The process in which a plugin with `runtime = "wasm"` runs (PROTOCOL.md, "The plugin's process").

Rules here: the room is started as a program, `python -m utter_runner.wasm`, and nothing of the runner imports it nor it
anything of the runner; what the module may reach is what is handed to it here, and nothing is by default.
"""
