"""Training: records (TrainingInfoProto), losses, optimizers, schedules, the step and the loop."""
