"""The parts of an environment's program: the loop, checks, processes and the screen.

Begin with `loop`.
"""
