"""What `sluice control` costs with many models: CPU of what reads, watches and decides, and the memory of all its processes.

A writer puts arrivals and measured batches of ``--models`` models, ``--rate`` requests/s in all, into the streams as the buffers do,
through the code and the script of their queue (Poisson, batches of ``SIZE`` that take what their profile says), and a real
controller watches them in a real Redis. After ``--warm`` seconds it is watched for ``--seconds``: its CPU and its memory, and that of
the process that decides (``PSS``: what is shared counts in parts), from /proc; ``--here`` decides in the controller's own process
instead, for comparison. ``--idle`` models have a plan and no requests besides.

``python -m benchmarks.control_many [--models 10] [--rate 500] [--period 300] [--warm 60] [--seconds 330] [--idle 0] [--here]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, Plan, PolicyDocument, ServiceProfile, Slo, write
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits
from sluice.controller.deciding import Decider
from sluice.controller.journal import Journal, read_journal
from sluice.controller.leadership import lead
from sluice.controller.model_control import ModelTuner
from sluice.controller.model_process import ModelProcess
from sluice.controller.model_setups import ModelSetups
from sluice.local.redis_server import RedisServer
from sluice.optimizer.tuning.decision import Decision, Trigger
from sluice.optimizer.tuning.setup import TuningSettings
