"""What plugins may ask of the runner, and what they announce to it."""
