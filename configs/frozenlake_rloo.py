"""RLOO at the full budget on the foggy lake: leave-one-out advantages, otherwise as frozenlake_grpo.py.

Command:  python launch/train.py --config=configs/frozenlake_rloo.py --run_dir=runs/rloo --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """The mean of the others is the baseline, and nothing is divided by a spread."""
    config = grpo_config()
    config.algorithm.name = "rloo"
    return config
