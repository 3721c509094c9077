"""Variables that are nearly a setting are found, and those of the other programs of Sluice are left alone."""

from __future__ import annotations

import dataclasses

from sluice.batching.variables import PREFIX, misspelt
from sluice.buffer_service.settings import VARIABLES as OF_BUFFERS
from sluice.lambda_fn.loading import VARIABLES as OF_MODELS
from sluice.lambda_fn.worker.program import WorkerSettings

OF_WORKERS = tuple(PREFIX + field.name.upper() for field in dataclasses.fields(WorkerSettings))


def test_a_name_that_is_nearly_a_setting_is_found() -> None:
    given = {"SLUICE_REQUEST_TIMEOUTS": "3", "SLUICE_PLAN": "file:p", "SLUICE_LOGLEVEL": "info", "REQUEST_TIMEOUTS": "3"}
    assert misspelt(given, OF_BUFFERS) == {
        "SLUICE_REQUEST_TIMEOUTS": "SLUICE_REQUEST_TIMEOUT",
        "SLUICE_PLAN": "SLUICE_PLANS",
        "SLUICE_LOGLEVEL": "SLUICE_LOG_LEVEL",
    }


def test_an_environment_may_be_shared_by_all_programs() -> None:
    shared = dict.fromkeys((*OF_BUFFERS, *OF_WORKERS, *OF_MODELS, "SLUICE_PORT"), "1")
    assert misspelt(shared, OF_BUFFERS) == misspelt(shared, (*OF_WORKERS, *OF_MODELS)) == {}
