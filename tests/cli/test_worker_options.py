"""What `--worker` and `--provisioned` offer to the search."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.batching.documents import LinearServiceTime, ServiceProfile, read, write
from sluice.batching.errors import InvalidInput
from sluice.cli.worker_options import read_worker
from sluice.optimizer.billing import Billing, default_prices
from sluice.optimizer.recommend import provisioned_offers


@pytest.fixture
def machine(tmp_path: Path) -> str:
    path = tmp_path / "gpu:0.json"  # a colon in a name is no separator, the last is
    law = LinearServiceTime(0.0003, 0.001)
    path.write_bytes(write(ServiceProfile(function="mlp", service_time=law, max_batch_size=32)))
    return str(path)


def test_a_machine_has_the_price_of_the_list_or_the_one_given(machine: str) -> None:
    listed, given = (read_worker(f"{machine}:{price}", default_prices(), 128) for price in ("ml.g4dn.xlarge", "0.5"))
    assert listed.price_per_hour == default_prices().machine("ml.g4dn.xlarge") and given.price_per_hour == 0.5
    assert (listed.name, given.name) == ("gpu:0:ml.g4dn.xlarge", "gpu:0:0.5") and listed.function == "mlp"
    assert listed.service.max_batch_size == 32 and listed.service.mean_response[31] == pytest.approx(0.0003 + 32 * 0.001)
    assert (listed.price_per_second, listed.price_per_request) == (0, 0)


def test_provisioned_concurrency_costs_its_reservation_its_duration_and_the_fee(profile: str) -> None:
    prices = default_prices()
    measured = read(ServiceProfile, Path(profile).read_bytes())
    offers = provisioned_offers(measured, (), Billing(prices, "arm64"), 128)
    assert [offer.service.memory_mb for offer in offers] == [512, 1769]
    (one,) = provisioned_offers(measured, (512,), Billing(prices, "arm64", 0.1), 128)
    price = prices.provisioned(512, "arm64")
    assert (one.price_per_hour, one.price_per_second) == (price.reserved_per_hour, price.per_second)
    assert one.price_per_request == prices.function.request and one.granularity == 0.1
    assert (one.name, one.function) == ("provisioned, 512 MB", "mlp-512")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{machine}", "worker: '.*' is not allowed; allowed: PROFILE.json:MACHINE or PROFILE.json:USD_PER_HOUR"),
        (":0.5", "worker: ':0.5' is not allowed; allowed: PROFILE.json:MACHINE"),
        ("{machine}:", "worker: '.*:' is not allowed; allowed: PROFILE.json:MACHINE"),
        ("{machine}:abacus", "machine: 'abacus' is not allowed; allowed: one of .*ml.g4dn.xlarge"),
        ("{machine}:-1", "price_per_hour: -1.0 is not allowed; allowed: USD >= 0"),
        ("/nowhere.json:0.5", "--worker: '/nowhere.json' is not allowed"),
        ("{profile}:0.5", "a profile of one memory size, not of 512, 1769 MB"),
    ],
)
def test_what_is_no_offer_is_refused_by_name(text: str, message: str, machine: str, profile: str) -> None:
    text = text.replace("{machine}", machine.replace(":0", "") if text == "{machine}" else machine).replace("{profile}", profile)
    with pytest.raises(InvalidInput, match=message):
        read_worker(text, default_prices(), 128)
