"""GRPO at the full budget on the foggy lake, with the tiny model.

The fifth action `look` and the hidden holes depart from the paper's FrozenLake, see README.

Command:  python launch/train.py --config=configs/frozenlake_grpo.py --run_dir=runs/grpo --init=run:runs/base
"""

from jaxrl_agent.config import default_config


def get_config():
    """Every trajectory may use all 16 turns."""
    config = default_config()
    config.algorithm.clip_high = 0.2
    config.algorithm.entropy_coefficient = 0.005
    # At a constant rate the noise of the last updates, when nearly all groups succeed, wanders through what the policy
    # does at budgets that it never trains at, and the reversal at 25% comes and goes with the seed.
    config.optimizer.schedule = "linear"
    return config
