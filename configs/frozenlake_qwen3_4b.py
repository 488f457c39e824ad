"""GRPO on the stock lake (map seen, four moves) for a pretrained Qwen3-4B in non-thinking chat.

Command:  python launch/train.py --config=configs/frozenlake_qwen3_4b.py --init=hf:DIR --mesh=fsdp:8 --run_dir=runs/4b
BudgetMix:  add --config.budget.schedule=budget_mix
Device:   written for 8 accelerators of 80 GB; not run at this size yet, so there is no time or score to quote.
"""

from jaxrl_agent.config import default_config


def get_config():
    """32 groups of 8, maps from 4x4 to 8x8, 16 turns, the budget told in the first message."""
    config = default_config()
    config.model.dtype = "bfloat16"
    config.model.remat = True
    config.task.tokenizer = ""  # the checkpoint's own
    config.task.text = "chat"
    config.task.max_tokens = 128
    config.task.t_max = 16
    config.task.lake.foggy = False
    config.task.lake.max_size = 8
    config.task.lake.max_holes = 24
    config.task.lake.min_holes = 1
    config.warm_start.updates = 0
    config.rollout.prompts_per_update = 32
    config.train.updates = 200
    config.train.mini_batches = 1
    config.train.micro_batch_tokens = 6144
    config.train.checkpoint_every = 20
    config.train.trajectories_every = 20
    config.optimizer.learning_rate = 1e-6
    config.optimizer.warmup = 5
    config.optimizer.weight_decay = 0.0
    return config
