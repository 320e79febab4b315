"""Distributed asynchronous advantage actor-critic: A3C (Mnih et al. 2016) with its threads spread over machines.

Goals: the paper's Algorithm S3 for discrete actions, readable beside it; any observation that fits a dense or a
convolutional network, with an LSTM or without; N environments per worker. Non-goals: continuous actions (`da3c_cont`),
replay. See README.md.
"""

from .agent import Agent
from .config import Config
from .parameter_server import ParameterServer

__all__ = ["Agent", "Config", "ParameterServer"]
