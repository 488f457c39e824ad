"""What multi-turn reinforcement learning improves in LLM agents, and under which turn budget."""

__version__ = "0.1.0"
