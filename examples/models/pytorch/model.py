"""A PyTorch network that takes and gives tensors, so that clients of Triton and KServe can call it."""

from pathlib import Path

import numpy as np
import torch

from sluice.lambda_fn import TensorSpec


def make_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


class Digits:
    takes = (TensorSpec("pixels", "FP32", (-1, 64)),)
    gives = (TensorSpec("logits", "FP32", (-1, 10)),)

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network = make_network().to(self.device).eval()
        self.network.load_state_dict(torch.load(Path(__file__).with_name("weights.pt"), map_location=self.device))

    def predict(self, inputs: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        rows = [len(one["pixels"]) for one in inputs]  # a request may bring several
        pixels = torch.from_numpy(np.concatenate([one["pixels"] for one in inputs])).to(self.device)
        with torch.inference_mode():
            logits = self.network(pixels).cpu()
        return [{"logits": part.numpy()} for part in logits.split(rows)]
