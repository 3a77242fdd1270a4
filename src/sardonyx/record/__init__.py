"""The training record: losses, optimizers, schedules, initializers, `trainable`, the step."""
