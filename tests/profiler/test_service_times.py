"""The sweep measures what the function takes, spreads its time fairly and says what it does not know; all in virtual time."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from sluice.batching import documents
from sluice.batching.documents import model_of
from sluice.batching.errors import DispatchFailed, FunctionFailed, InvalidInput, NotConverged
from sluice.lambda_fn import contract
from sluice.profiler.invocations import Invocation
from sluice.profiler.samples import Sample
from sluice.profiler.service_times import Sweep, measure_service_times, relative_half_width
from sluice.profiler.simulated import SimulatedFunction

MEMORY, BATCH = (512, 1024, 1769), (1, 4, 16)


def sweep(**fields):
    settings = {
        "function": "mlp-{memory_mb}:live",
        "memory_sizes": MEMORY,
        "batch_sizes": BATCH,
        "samples": (Sample(b"[1]"),),
        "model": "mlp",
    }
    return Sweep(**(settings | fields))


def linear(memory_mb, batch_size):
    return (0.005 + 0.001 * batch_size) * 1769 / memory_mb


def noisy(rng, scv):
    """Gamma service times around ``linear`` with a squared coefficient of variation ``scv``."""
    return lambda memory_mb, batch_size: rng.gamma(1 / scv, scv * linear(memory_mb, batch_size))


def measure(function, asked, **options):
    return measure_service_times(asked, function, np.random.default_rng(7), clock=function.clock, **options)


def test_constant_service_times_are_measured_exactly_in_the_fewest_runs():
    measured = measure(SimulatedFunction(linear, overhead=0.003), sweep(n_min=10), measured_at="2026-11-01T00:00:00Z")
    assert [(p.memory_mb, p.batch_size) for p in measured.profile.points] == [(m, b) for m in MEMORY for b in BATCH]
    for point in measured.profile.points:
        assert point.service_time.mean == pytest.approx(linear(point.memory_mb, point.batch_size))
        assert point.service_time.n == 10
        assert point.overhead == pytest.approx(0.003)
        assert 0 <= point.billed_duration - point.service_time.mean + 1e-12 < 0.001
    assert measured.converged
    assert measured.profile.measured_at == "2026-11-01T00:00:00Z"


class Padding(SimulatedFunction):
    """Its batches take as long as their largest, which is the number in the body."""

    def __call__(self, function, payload):
        batch = contract.decode_batch(payload)
        self.largest = max((float(item.body) for item in batch.items), default=0.0)
        return super().__call__(function, payload)


def test_every_size_is_measured_at_every_memory_and_batch_size_and_the_points_say_which():
    function = Padding(lambda memory_mb, batch_size: linear(memory_mb, batch_size) * function.largest)
    sizes = (64.0, 4.0)
    asked = sweep(samples=tuple(Sample(b"%d" % size, size=size) for size in sizes), n_min=5, n_max=5)
    assert asked.cost_bound().invocations == 3 * 3 * 2 * (5 + 1) + 1
    seen = []
    measured = measure(function, asked, on_progress=seen.append)
    assert {(p.memory_mb, p.batch_size, p.size) for p in seen} == {(m, b, s) for m in MEMORY for b in BATCH for s in sizes}
    profile = measured.profile
    assert profile.sizes == [4.0, 64.0] and len(profile.points) == len(measured.points) == 18
    for size in sizes:
        for point in profile.of_size(size).points:
            assert point.service_time.mean == pytest.approx(linear(point.memory_mb, point.batch_size) * size)
    assert [p.setting for p in measured.points[:2]] == ["512 MB, batch size 1, size 4", "512 MB, batch size 1, size 64"]


def test_a_run_that_fails_names_the_size():
    function = Padding(linear)
    samples = (Sample(b"1", size=1), Sample(b"9", size=9))

    def refusing(name, payload):
        run = function(name, payload)
        if function.largest < 9:
            return run
        raise FunctionFailed("too long")

    with pytest.raises(FunctionFailed, match="memory_mb 512, batch_size 1, size 9: too long"):
        measure_service_times(sweep(samples=samples), refusing, np.random.default_rng(0), clock=function.clock)


def test_a_function_that_computes_its_batches_one_by_one_is_told_in_the_profile():
    reason = "the batch dimension of input 'x' is fixed: 1"
    assert measure(SimulatedFunction(linear, one_by_one=reason), sweep(n_min=2)).profile.one_by_one == reason
    assert measure(SimulatedFunction(linear), sweep(n_min=2)).profile.one_by_one is None


def test_the_profile_knows_how_large_request_and_answer_are_but_where_requests_are_of_several_sizes():
    alike = measure(SimulatedFunction(linear), sweep(n_min=2)).profile
    assert (alike.request_bytes, alike.answer_bytes) == (3, 3)  # it answers with what it got
    function = Padding(lambda memory_mb, batch_size: linear(memory_mb, batch_size) * function.largest)
    sized = measure(function, sweep(samples=(Sample(b"4", size=4.0), Sample(b"64", size=64.0)), n_min=2, n_max=2)).profile
    assert (sized.request_bytes, sized.answer_bytes) == (None, None)


def test_the_profile_names_the_model_that_was_asked_for_whatever_its_function_is_called():
    asked = sweep(n_min=2, function="f-{memory_mb}", model="encoder")
    assert measure(SimulatedFunction(linear), asked).profile.model == "encoder"


def test_a_function_that_does_not_describe_its_model_is_measured_all_the_same():
    function = SimulatedFunction(linear)

    def invoke(name, payload):
        if contract.decode_batch(payload).describe:
            raise FunctionFailed("what is that?")
        return function(name, payload)

    measured = measure_service_times(sweep(n_min=2), invoke, np.random.default_rng(0), clock=function.clock)
    assert measured.converged and measured.profile.one_by_one is None


def test_cold_starts_are_kept_apart_by_memory_size():
    measured = measure(SimulatedFunction(linear, init_duration=0.3), sweep())
    assert {m: init.mean for m, init in measured.profile.init.items()} == {m: pytest.approx(0.3) for m in MEMORY}
    for point in measured.profile.points:  # not one billed with an INIT, nor with its overhead
        assert point.billed_duration < 0.1 and point.overhead < 0.01


def test_a_cold_start_in_the_middle_is_not_counted_as_a_service_time():
    function = SimulatedFunction(linear, init_duration=5.0)

    def invoke(name, payload):
        if len(function.calls) % 7 == 6:
            function.warm.clear()
        return function(name, payload)

    measured = measure_service_times(sweep(max_seconds=1e4), invoke, np.random.default_rng(0), clock=function.clock)
    for point in measured.profile.points:
        assert point.service_time.mean == pytest.approx(linear(point.memory_mb, point.batch_size))
        assert point.billed_duration < 0.1 and point.overhead < 0.01  # 5 s of INIT are billed and waited for
    assert sum(init.n for init in measured.profile.init.values()) > 5


def test_noisier_points_are_run_more_often_until_all_are_as_precise_as_asked():
    rng = np.random.default_rng(1)
    law = {1: 1e-4, 4: 0.01, 16: 0.04}
    function = SimulatedFunction(lambda m, b: rng.gamma(1 / law[b], law[b] * linear(m, b)))
    measured = measure(function, sweep(precision=0.03, n_max=1000, max_seconds=1e4))
    runs = {b: np.mean([p.n for p in measured.points if p.batch_size == b]) for b in BATCH}
    assert runs[1] == 20 < runs[4] < runs[16]
    assert all(p.relative_half_width <= 0.03 and p.stopped == "precise" for p in measured.points)
    # Student's interval at the stopping point needs about (1.96 / precision)^2 scv runs.
    assert runs[16] == pytest.approx((1.96 / 0.03) ** 2 * 0.04, rel=0.25)


def test_the_interval_covers_the_true_mean_nearly_as_often_as_it_says():
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(25):
        measured = measure(SimulatedFunction(noisy(rng, 0.02)), sweep(precision=0.05, max_seconds=1e4))
        for known, point in zip(measured.points, measured.profile.points, strict=True):
            true = linear(point.memory_mb, point.batch_size)
            inside.append(abs(point.service_time.mean - true) <= known.relative_half_width * point.service_time.mean)
    # 225 intervals; looking after every run costs some coverage (Chow & Robbins), the binomial noise is 0.015.
    assert 0.87 <= np.mean(inside) <= 0.99


def test_half_width_is_that_of_students_interval():
    durations = [0.010, 0.012, 0.011, 0.015, 0.009]
    low, high = stats.t.interval(0.95, 4, np.mean(durations), stats.sem(durations))
    assert relative_half_width(durations) == pytest.approx((high - low) / 2 / np.mean(durations))
    assert relative_half_width([0.01]) == math.inf


def test_rounds_interleave_the_points_so_that_a_drift_biases_none():
    function = SimulatedFunction(lambda m, b: 0.0)
    drift = lambda m, b: 0.010 * (1 + 0.5 * function.now)  # 50 % slower every second  # noqa: E731
    function.service_time = drift
    measured = measure(function, sweep(n_min=30, n_max=30, precision=0.5))
    means = [point.service_time.mean for point in measured.profile.points]
    # All points see the same drift; measured one after the other they would differ by a factor.
    assert max(means) / min(means) < 1.1


def test_time_is_shared_so_that_slow_points_do_not_starve_fast_ones_and_savings_are_passed_on():
    rng = np.random.default_rng(3)
    function = SimulatedFunction(lambda m, b: rng.gamma(1, 1.0 if b == 16 else 0.01), init_duration=0.0)
    measured = measure(function, sweep(memory_sizes=(512,), precision=0.01, n_max=10_000, max_seconds=60))
    runs = {p.batch_size: p.n for p in measured.points}
    # A third of 60 s each: about 20 runs of 1 s, and 1700 of 12 ms.
    assert 10 <= runs[16] <= 30
    assert runs[1] > 1000 and runs[4] > 1000
    assert all(p.stopped == "time" for p in measured.points)
    assert not measured.converged

    constant = SimulatedFunction(lambda m, b: rng.gamma(1, 1.0) if b == 16 else 0.01)
    saved = measure(constant, sweep(memory_sizes=(512,), precision=0.01, n_max=10_000, max_seconds=60))
    assert {p.batch_size: p.n for p in saved.points}[16] > 40  # the others closed after 20 runs and left their time to it


def test_a_sweep_ends_in_its_time_but_for_the_run_under_way_and_within_its_cost():
    rng = np.random.default_rng(4)
    asked = sweep(max_seconds=20, precision=0.001)
    function = SimulatedFunction(noisy(rng, 0.5))
    measured = measure(function, asked)
    bound = asked.cost_bound()
    assert measured.spent.seconds == function.now <= 20 + 0.5
    assert measured.spent.gb_seconds <= bound.gb_seconds
    assert measured.spent.invocations == len(function.calls) + 1 <= bound.invocations  # that one describes the model
    # Billed milliseconds of every memory size, at least those of the counted runs.
    counted = sum(p.billed_duration * p.service_time.n * p.memory_mb / 1024 for p in measured.profile.points)
    assert counted <= measured.spent.gb_seconds


def test_cost_is_gb_seconds_and_requests_times_their_prices():
    bound = sweep(n_max=99, max_seconds=50).cost_bound()
    assert bound.invocations == 901
    assert bound.gb_seconds == pytest.approx(1769 / 1024 * (50 + 0.901))
    assert bound.usd(1.66667e-5, 2e-7) == pytest.approx(bound.gb_seconds * 1.66667e-5 + 901 * 2e-7)


def test_too_little_time_names_the_point_and_carries_what_was_measured():
    function = SimulatedFunction(lambda m, b: 10.0 if b == 16 else 0.01)
    with pytest.raises(
        NotConverged, match=r"1 of 3 points have fewer than two warm runs .* memory_mb 512, batch_size 16"
    ) as caught:
        measure(function, sweep(memory_sizes=(512,), max_seconds=15))
    assert [p.batch_size for p in caught.value.best.points] == [1, 4]


def test_a_function_that_only_starts_cold_is_reported_and_does_not_run_for_ever():
    function = SimulatedFunction(linear)

    def invoke(name, payload):
        function.warm.clear()
        return function(name, payload)

    with pytest.raises(NotConverged, match=r"3 of 3 points .* of them cold starts") as caught:
        measure_service_times(sweep(memory_sizes=(512,)), invoke, np.random.default_rng(0), clock=function.clock)
    assert caught.value.best is None


def test_the_profile_survives_its_document():
    profile = measure(SimulatedFunction(noisy(np.random.default_rng(6), 0.05)), sweep()).profile
    assert documents.read(documents.ServiceProfile, documents.write(profile)) == profile


def test_progress_rises_to_one_and_is_told_after_every_run():
    seen = []
    measure(SimulatedFunction(noisy(np.random.default_rng(6), 0.02)), sweep(), on_progress=seen.append)
    fractions = [progress.fraction for progress in seen]
    assert fractions[-1] == 1.0 and 0 < fractions[0] < 0.2
    assert seen[-1].closed == seen[-1].points == 9


def test_every_round_runs_every_open_point_once():
    function = SimulatedFunction(linear)
    measure(function, sweep(n_min=5))
    for start in range(0, len(function.calls), 9):
        assert set(Counter(function.calls[start : start + 9]).values()) == {1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_sizes": (64,)}, "memory: 64 is not allowed; allowed: memory sizes from 128 to 10240 MB"),
        ({"memory_sizes": ()}, r"memory: \(\) is not allowed"),
        ({"memory_sizes": (512, 512)}, r"memory: \(512, 512\) is not allowed; .* each once"),
        ({"batch_sizes": (0,)}, "batch_size: 0 is not allowed; allowed: batch sizes >= 1"),
        ({"batch_sizes": (2, 4)}, r"batch_size: \(2, 4\) is not allowed; allowed: 1 among them"),
        ({"function": "mlp"}, r"function: 'mlp' is not allowed; allowed: a name with \{memory_mb\} in it, since 3 memory sizes"),
        ({"precision": 0.0}, "precision: 0.0 is not allowed"),
        ({"n_min": 1}, "n_min: 1 is not allowed"),
        ({"n_max": 3}, r"n_max: 3 is not allowed; allowed: an integer >= n_min \(20\), at most 100000"),
        ({"n_max": 100_001}, "n_max: 100001 is not allowed"),
        ({"max_seconds": 0}, "max_seconds: 0 is not allowed; allowed: a number of seconds > 0, at most 86400"),
        ({"max_seconds": 86_401}, "max_seconds: 86401 is not allowed"),
        ({"function": "http://h:1", "memory_sizes": (0,)}, "memory: 0 is not allowed; allowed: memory sizes of a machine from 1"),
        ({"samples": ()}, "size: \\[\\] is not allowed; allowed: a size of every payload, each once, or one payload without"),
        ({"samples": (Sample(b"1"), Sample(b"2", size=2))}, r"size: \[None, 2\] is not allowed"),
        ({"samples": (Sample(b"1", size=2), Sample(b"2", size=2))}, r"size: \[2, 2\] is not allowed"),
        ({"samples": (Sample(b"1", size=-1),)}, r"size: \[-1\] is not allowed; allowed: sizes >= 0"),
        (
            {"samples": (Sample(b'"' + b"x" * 1_000_000 + b'"'),)},
            "batch_size: 16 is not allowed; allowed: at most 6, the largest batch of this payload within Lambda's 6291456 bytes",
        ),
        (
            {"samples": (Sample(b"x" * 7_000_000, "image/png"),)},
            "batch_size: 16 is not allowed; allowed: none: a single request is too large",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_by_name(fields, message):
    with pytest.raises(InvalidInput, match=message):
        sweep(**fields)


def test_one_memory_size_needs_no_template():
    function = SimulatedFunction(linear)
    measured = measure(function, sweep(function="mlp-512", memory_sizes=(512,)))
    assert measured.profile.function == "mlp-512"


def test_another_memory_size_than_the_name_was_to_select_is_refused():
    with pytest.raises(InvalidInput, match="memory: 512 is not allowed; allowed: 1024, which is what mlp-1024 has"):
        measure(SimulatedFunction(linear), sweep(function="mlp-1024", memory_sizes=(512,)))


def answering(function, change):
    def invoke(name, payload):
        run = function(name, payload)
        return Invocation(change(run.payload, contract.decode_batch(payload)), run.report, run.wall_time)

    return invoke


def test_an_item_that_is_not_answered_with_200_ends_the_sweep_and_says_what_the_function_said():
    def reject_third(payload, batch):
        answers = contract.decode_answers(payload, batch)
        if len(answers) > 2:
            answers[2] = contract.failed(answers[2].id, 400, "Bad Request", "input x: shape [3] does not match [4]")
        return contract.encode_answers(answers)

    function = SimulatedFunction(linear)
    with pytest.raises(FunctionFailed, match=r"memory_mb 512, batch_size 4: item 2 .* status 400: .*shape \[3\] does not match"):
        measure_service_times(sweep(), answering(function, reject_third), np.random.default_rng(0), clock=function.clock)


def test_an_answer_that_is_not_of_the_batch_format_is_named():
    function = SimulatedFunction(linear)
    with pytest.raises(
        FunctionFailed, match=r"memory_mb 512, batch_size 1: mlp-512:live does not speak the batch format: not an answer"
    ):
        measure_service_times(
            sweep(), answering(function, lambda payload, batch: b'"echo"'), np.random.default_rng(0), clock=function.clock
        )


@pytest.mark.parametrize("kind", [FunctionFailed, DispatchFailed])
def test_a_failed_invocation_names_the_point_and_stays_the_error_it_was(kind):
    def invoke(name, payload):
        raise kind("it broke")

    with pytest.raises(kind, match="memory_mb 512, batch_size 1: it broke") as caught:
        measure_service_times(sweep(), invoke, np.random.default_rng(0))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("function", "model"),
    [
        ("mlp", "mlp"),
        ("mlp-512", "mlp"),
        ("mlp-{memory_mb}:live", "mlp"),
        ("arn:aws:lambda:us-east-1:123456789012:function:resnet50-{memory_mb}:live", "resnet50"),
        ("{memory_mb}", "{memory_mb}"),
        ("http://10.0.0.1:8500", ""),
        ("sagemaker://encoder", ""),
    ],
)
def test_the_model_is_named_by_the_function(function, model):
    assert model_of(function) == model
