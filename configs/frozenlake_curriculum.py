"""A curriculum of budgets on the foggy lake: the cap rises from a quarter to the whole, as ScalingInter-RL does.

Command:  python launch/train.py --config=configs/frozenlake_curriculum.py --run_dir=DIR --init=run:DIR
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """Three stages of 50 updates: 4, 8 and 16 turns."""
    config = grpo_config()
    config.budget.schedule = "curriculum"
    config.budget.caps = (4, 8, 16)
    config.budget.stage_updates = 50
    return config
