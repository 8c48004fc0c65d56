-- One fixed format, so that either end of the snd-aloop cable may be opened first (hw:Loopback,1,0 S16_LE 48000 2ch).
table.insert(alsa_monitor.rules, {
  matches = { { { "node.name", "matches", "alsa_*aloop*" } } },
  apply_properties = { ["audio.format"] = "S16LE", ["audio.rate"] = 48000, ["audio.channels"] = 2 },
})
