"""The base policy of the foggy lake: a warm start on imperfect demonstrations, no reinforcement learning.

Command:  python launch/train.py --config=configs/frozenlake_base.py --run_dir=runs/base
"""

from jaxrl_agent.config import default_config


def get_config():
    """The small model, the foggy 4x4 lake, the budget told in the first prompt."""
    config = default_config()
    config.train.updates = 0
    return config
