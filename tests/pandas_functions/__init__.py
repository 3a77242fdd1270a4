"""Data preparation as people write it in notebooks, one module per task; frames.py has the data."""
