"""GRPO at the full budget on DeepCoder-MT's template problems, with the tiny model on a CPU: six minutes on two cores.

Command:  python launch/train.py --config=configs/deepcoder_tiny_grpo.py --run_dir=runs/code_grpo \\
          --init=run:runs/code_base
"""

from configs.deepcoder_tiny_base import get_config as base_config


def get_config():
    """Every trajectory may use all 5 turns."""
    config = base_config()
    # A trajectory's tokens are averaged, not summed: failing ones are five turns long and would drown the others.
    config.algorithm.aggregation = "seq_mean_token_mean"
    # Some of the base's replies ramble to the limit: left out of the loss, nothing would tell it to stop.
    config.algorithm.train_on_cut_replies = True
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = "linear"
    config.rollout.prompts_per_update = 12
    config.train.updates, config.train.mini_batches = 25, 1
    return config
