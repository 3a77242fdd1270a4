"""TensorFlow's graphs in."""
