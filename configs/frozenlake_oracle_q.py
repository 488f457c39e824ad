"""Exact process rewards at the full budget on the foggy lake: GRPO plus Q_h - V_h of every turn.

The values are those of an agent that sees through the fog: to it a look is a wasted turn.

Command:  python launch/train.py --config=configs/frozenlake_oracle_q.py --run_dir=runs/oracle_q --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """Finite-horizon values at gamma 1, with the turns that are left."""
    config = grpo_config()
    config.algorithm.name = "process_reward"
    return config
