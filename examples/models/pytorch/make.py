"""Makes the weights that model.py loads, drawn from a seed: python make.py

In a project of your own they are those that a training saved.
"""

from pathlib import Path

import torch
from model import make_network

torch.manual_seed(5)
torch.save(make_network().state_dict(), Path(__file__).with_name("weights.pt"))
