"""Rules for TensorFlow's operators, in files by family; each is named after its operator."""
