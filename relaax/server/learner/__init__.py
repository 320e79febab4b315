"""The learner: a process that samples replay memory and computes gradients."""
