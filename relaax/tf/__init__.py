"""Pure TensorFlow functions, and what they are computed on. Importing executes no operation."""
