"""What speculation gains and whether it changes anything: measured, and checked, on the user's own models."""
