"""The training loop: data, metrics, checkpoints, display, report; train, evaluate, predict."""
