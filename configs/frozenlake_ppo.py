"""PPO at the full budget on the foggy lake: a critic that sees the turns left, turn-level advantages.

Command:  python launch/train.py --config=configs/frozenlake_ppo.py --run_dir=runs/ppo --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """As many trajectories and optimizer steps as GRPO; the critic reads the policy's hidden states."""
    config = grpo_config()
    config.algorithm.name = "ppo"
    return config
