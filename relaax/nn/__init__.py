"""Networks: specification, flat layout and initial numbers, what computes them, distributions over actions."""
