"""Who may wait: the bound of the wait from what is measured, and when more comes than is served."""

import math
from bisect import insort

import pytest

from sluice.batching import policy as constructors
from sluice.batching.errors import Overloaded
from sluice.buffer_service.admission import OF_PATIENCE, STANDING, THROTTLE, Admission
from sluice.buffer_service.slack_line import SlackLine

BATCH, TIME = 8, 0.1  # a server takes 8 in 0.1 s
RATE = BATCH / TIME
PATIENCE = 10.0


class Served:
    """A queue served at its rate, and its admission; ``each_batch`` come in the time of a batch."""

    def __init__(self, servers=1, slo=None, drop_after=None, time=TIME):
        table = constructors.greedy(BATCH, servers)
        self.policy = constructors.Policy(table.hold, table.take, servers, drop_after)
        self.admission = Admission(self.policy, PATIENCE, slo)
        self.now, self.waiting, self.taken, self.refused, self.time = 0.0, 0, 0, 0, time

    def batches(self, n, each_batch):
        """So many services, one after the other; the longest wait of who was let in, in members."""
        longest = 0
        for _ in range(n):
            self.now += self.time
            for _ in range(each_batch):
                if self.admission.refuses(self.now, self.waiting, "m") is None:
                    self.waiting += 1
                else:
                    self.refused += 1
                longest = max(longest, self.waiting)
            taken = min(BATCH, self.waiting)
            self.waiting, self.taken = self.waiting - taken, self.taken + taken
            self.admission.worked(self.time)
            self.admission.heard(self.now, self.waiting, self.taken, 1)
        return longest


@pytest.mark.parametrize("multiple", [2, 3, 10])
def test_overload_is_seen_in_a_few_batches_and_the_wait_is_bounded_from_then_on(multiple):
    served = Served()
    served.batches(20, BATCH // 2)
    assert served.refused == 0
    served.batches(12, multiple * BATCH)
    assert served.refused > 0
    served.batches(10, multiple * BATCH)  # what was let in before is served
    refused = served.refused
    longest = served.batches(50, multiple * BATCH)
    assert longest <= max(STANDING, 3 * TIME) * RATE + BATCH
    assert served.refused - refused == pytest.approx(50 * (multiple - 1) * BATCH, rel=0.05)  # the server is never idle
    served.batches(5, BATCH // 2)
    refused = served.refused
    served.batches(20, BATCH // 2)
    assert served.refused == refused and not served.admission._urgent.overload


def test_a_burst_that_ends_and_a_queue_that_only_fluctuates_are_let_in():
    served = Served()
    served.batches(20, BATCH)
    served.batches(1, 4 * BATCH)
    served.batches(30, BATCH - 1)
    assert served.refused == 0


def test_who_would_wait_beyond_his_patience_is_refused_and_told_when_to_come_again():
    admission = Admission(constructors.greedy(BATCH), PATIENCE, None)
    admission.worked(TIME)
    longest = (PATIENCE - 1.25 * TIME) * RATE
    assert admission.refuses(0.0, math.floor(longest), "m") is None
    refusal = admission.refuses(0.0, math.ceil(longest) + 80, "m")
    assert isinstance(refusal, Overloaded)
    assert refusal.retry_after == pytest.approx(1.0, abs=0.02)
    assert "870 requests wait, 10.9 s of work" in str(refusal)


def test_an_slo_and_callers_who_leave_early_bound_the_wait_of_overload_but_a_batch_for_each_server_may_always_wait():
    for served in (Served(slo=0.4), Served()):
        if served.admission._promise == PATIENCE:
            for waited in (0.4, 0.4, 0.4, 0.4, 0.4, 0.001):
                served.admission.left(0.0, waited)
        served.batches(40, 3 * BATCH)
        assert served.batches(20, 3 * BATCH) <= max(BATCH, 0.15 * RATE) + 1
        assert served.waiting + served.refused > 0
    tight = Served(slo=0.05)
    tight.batches(40, 3 * BATCH)
    assert tight.batches(20, 3 * BATCH) == BATCH
    taken = tight.taken
    tight.batches(10, 3 * BATCH)
    assert tight.taken - taken == 10 * BATCH


def test_drop_after_of_the_table_is_the_bound_whatever_comes():
    served = Served(drop_after=1.0)
    longest = served.batches(100, 3 * BATCH)
    assert longest == pytest.approx(1.0 * RATE, abs=2)


def test_a_server_that_hangs_lets_in_one_batch_and_one_that_returns_is_measured_again():
    served = Served()
    served.batches(20, 2 * BATCH)
    while served.waiting < 2 * BATCH:
        served.waiting += 1
    for _ in range(400):  # nothing is taken any more
        served.now += TIME
        served.admission.heard(served.now, served.waiting, served.taken, 1)
    refusal = served.admission.refuses(served.now, served.waiting, "m")
    assert refusal is not None and refusal.retry_after <= 10.0
    assert served.admission.refuses(served.now, BATCH - 1, "m") is None
    served.batches(60, BATCH // 2)
    refused = served.refused
    served.batches(20, BATCH // 2)
    assert served.refused == refused


def test_before_an_elastic_function_that_refuses_nothing_and_before_anything_is_known_nobody_is_refused():
    admission = Admission(constructors.greedy(BATCH, servers=None), PATIENCE, 0.1)
    admission.heard(0.0, 10**6, 0, 1)
    assert admission.has_room(0, 10**6) and admission.refuses(0.0, 10**6, "m") is None
    assert Admission(constructors.greedy(BATCH), PATIENCE, 0.1).refuses(0.0, 10**6, "m") is None


def test_a_queue_that_begins_anew_and_another_table_are_measured_anew():
    served = Served()
    served.batches(40, 3 * BATCH)
    assert served.admission._urgent.overload
    served.admission.lost()
    assert not served.admission._urgent.overload
    served.admission.heard(served.now, 0, 0, 1)
    served.admission.follow(constructors.greedy(2 * BATCH), PATIENCE, None)
    assert served.admission.refuses(served.now, 10**4, "m") is None


def test_after_a_hang_who_waits_no_longer_than_his_patience_is_let_in_again():
    served = Served()
    served.batches(20, BATCH)
    served.waiting = 30 * BATCH  # 3 s of work
    for _ in range(100):
        served.now += TIME
        served.admission.heard(served.now, served.waiting, served.taken, 1)
    served.batches(4, 0)
    assert served.admission.refuses(served.now, 50 * BATCH, "m") is None or served.admission._urgent.overload
    assert served.admission._rate() == pytest.approx(RATE, rel=0.6)


def test_a_drop_after_beyond_the_patience_of_callers_bounds_nothing():
    table = constructors.greedy(BATCH)
    admission = Admission(constructors.Policy(table.hold, table.take, 1, 12 * PATIENCE), PATIENCE, None)
    admission.worked(TIME)
    assert admission.refuses(0.0, 1000, "m") is not None  # 12.5 s of work


def test_callers_who_left_long_ago_or_alone_say_nothing_of_the_others():
    admission = Admission(constructors.greedy(BATCH), PATIENCE, None)
    for now in range(4):
        admission.left(float(now), 0.001)
    assert admission._urgent.stay == math.inf
    for now in range(10):
        admission.left(now / 10, 2.0)
    assert admission._urgent.stay == 2.0
    admission.heard(30.0, 0, 0, 1)
    assert admission._urgent.stay == math.inf


@pytest.mark.parametrize("largest", [32, 128, 256, 512])
def test_batches_that_take_longer_than_callers_stay_are_made_smaller(largest):
    """Three times the capacity, callers who leave after 2 s, a batch of n in 10 ms + 5 ms n."""
    admission, stay, now, taken, good = Admission(constructors.greedy(largest), 60.0, None), 2.0, 0.0, 0, []
    waiting: list[float] = []  # when each came
    gap = 1 / 600
    while now < 60.0:
        batch, waiting = waiting[:largest], waiting[largest:]
        taken += len(batch)
        admission.heard(now, len(waiting), taken, 1)
        begin, end = now, now + 0.01 + 0.005 * max(1, len(batch))
        while now < end:
            now += gap
            for came in [came for came in waiting if now - came > stay]:
                waiting.remove(came)
                admission.left(now, stay)
            if admission.refuses(now, len(waiting), "m") is None:
                waiting.append(now)
        answered = [came for came in batch if end - came <= stay]
        for _ in range(len(batch) - len(answered)):
            admission.left(now, stay)
        good += [end] * len(answered)
        admission.worked(end - begin, 1 - len(answered) / max(1, len(batch)))
        admission.heard(now, len(waiting), taken, 1)
    assert sum(at >= 20.0 for at in good) >= 0.9 * 40 * 195


def test_a_count_of_who_was_taken_that_falls_is_not_measured():
    """As of a key that somebody deleted, that Redis evicted, or that was begun again."""
    served = Served()
    served.batches(20, BATCH)
    rate, served.taken = served.admission._rate(), 0
    served.batches(3, BATCH)
    assert served.admission._rate() == pytest.approx(rate, rel=0.05)
    assert served.admission.refuses(served.now, 2 * BATCH, "m") is None


def test_batches_that_another_version_took_uncounted_leave_nothing_behind():
    """Two versions on one queue: the older one does not count whom it takes, so that the rate looks half of what it is."""
    served = Served()
    served.batches(20, BATCH)
    for n in range(100):
        uncounted = served.taken
        served.batches(1, 3 * BATCH)
        if n % 2:
            served.taken = uncounted
    assert served.refused and 0 < served.admission._rate() < 0.7 * RATE
    served.batches(20, BATCH // 2)  # the older one has gone
    refused = served.refused
    served.batches(20, BATCH // 2)
    assert served.refused == refused and not served.admission._urgent.overload
    served.batches(20, BATCH)
    assert served.refused == refused and served.admission._rate() == pytest.approx(RATE, rel=0.1)


class Throttle:
    """An elastic function that takes ``slots`` batches at once, each for ``TIME``, and what it refuses; see ``Served``."""

    def __init__(self, slots, patience=60.0, slo=None):
        self.admission = Admission(constructors.greedy(BATCH, servers=None), patience, slo)
        self.slots, self.now, self.waiting, self.answered, self.refused = slots, 0.0, 0, 0, 0

    def rounds(self, n, each_round):
        """So many services of all slots; the longest wait of who was let in, in members."""
        longest = 0
        for _ in range(n):
            self.now += TIME
            answered, self.waiting = min(self.slots * BATCH, self.waiting), max(0, self.waiting - self.slots * BATCH)
            self.answered += answered
            if answered:
                self.admission.worked(TIME)
            for _ in range(each_round):
                if self.admission.has_room(min(self.slots, self.waiting // BATCH), 0) or not self.admission.refuses(
                    self.now, max(0, self.waiting - self.slots * BATCH), "m"
                ):
                    self.waiting += 1
                else:
                    self.refused += 1
                longest = max(longest, self.waiting)
            put_off = max(0, self.waiting - self.slots * BATCH)
            if put_off:
                self.admission.throttled(self.now, self.slots, self.slots * BATCH)
            self.admission.put_off(self.now, put_off, self.answered)
        return longest


def test_a_function_that_refuses_for_a_while_costs_nobody_and_one_that_goes_on_to_bounds_the_wait_by_what_it_serves():
    throttle = Throttle(4)
    throttle.rounds(int(3.0 / TIME), 3 * 4 * BATCH)
    assert throttle.refused == 0
    throttle.rounds(int((THROTTLE - 2.0) / TIME), 3 * 4 * BATCH)
    assert throttle.refused > 0
    throttle.rounds(150, 3 * 4 * BATCH)  # what was let in before is served
    refused = throttle.refused
    longest = throttle.rounds(50, 3 * 4 * BATCH)
    assert longest <= (max(STANDING, 3 * TIME) + 2 * TIME) * 4 * RATE
    assert throttle.refused - refused == pytest.approx(50 * 2 * 4 * BATCH, rel=0.05)  # no slot is idle
    throttle.rounds(10, BATCH)
    refused = throttle.refused
    throttle.rounds(20, BATCH)
    assert throttle.refused == refused


def test_callers_with_less_time_are_told_sooner():
    throttle = Throttle(1, patience=4.0)
    throttle.rounds(int(OF_PATIENCE * 4.0 / TIME) - 1, 3 * BATCH)
    assert throttle.refused == 0
    throttle.rounds(10, 3 * BATCH)
    assert throttle.refused > 0


def test_a_function_that_takes_nothing_is_expected_to_take_nothing_for_as_long_again():
    throttle = Throttle(0, patience=PATIENCE)
    throttle.rounds(30, BATCH)
    assert throttle.refused == 0
    throttle.rounds(20, BATCH)
    assert throttle.refused > 0
    refusal = throttle.admission.refuses(throttle.now, throttle.waiting, "m")
    assert refusal is not None and 0 < refusal.retry_after <= 10.0
    throttle.slots = 1000
    throttle.rounds(1, 0)
    refused = throttle.refused
    throttle.rounds(20, 100)
    assert throttle.refused == refused


def test_a_throttle_of_long_ago_says_nothing_of_the_next():
    throttle = Throttle(1, patience=PATIENCE)
    throttle.rounds(40, 3 * BATCH)
    assert throttle.admission._measured
    throttle.slots = 1000
    throttle.rounds(20, 0)
    throttle.slots = 0
    throttle.rounds(1, BATCH)
    assert not throttle.admission._measured and throttle.admission._wait(10**6) == 0.0


def test_nobody_is_let_in_for_more_places_of_a_function_than_it_is_known_to_have():
    admission = Admission(constructors.greedy(BATCH, servers=None), PATIENCE, None)
    admission.throttled(1.0, 4, 4 * BATCH)
    admission.put_off(1.0, BATCH, 0)
    admission.throttled(1.0, 7, 4 * BATCH)  # others that are about to be refused
    assert admission.has_room(3, 0) and not admission.has_room(4, 0) and not admission.has_room(3, BATCH)
    admission.took(4)
    assert not admission.has_room(4, 0)  # whether it takes more is found out by what waits
    admission.took(5)
    assert admission.has_room(4, 0) and not admission.has_room(5, 0)


# --- those with a slack above 0


class Shared(Served):
    """The same queue with two kinds in it: so many urgent come in the time of a batch, and so many with this slack."""

    def __init__(self, slack, **more):
        super().__init__(**more)
        self.slack, self.line, self.begins, self.waits = slack, SlackLine(10_000), [], {0.0: [], slack: []}
        self.turned_away = {0.0: 0, slack: 0}

    def flood(self, n, urgent, patient, stay=math.inf):
        for _ in range(n):
            self.now += self.time
            for i, slack in enumerate([0.0] * urgent + [self.slack] * patient):
                came = self.now + 1e-4 * i  # nobody came at the same moment
                behind = sum(begins >= came + slack for begins, _ in self.begins)
                before, part = len(self.begins) - behind, self.line.part(slack)
                if self.admission.refuses(self.now, before, "m", slack, part) is None:
                    insort(self.begins, (came + slack, slack))
                else:
                    self.turned_away[slack] += 1
            for begins, slack in [entry for entry in self.begins if self.now - entry[0] + entry[1] > stay]:
                self.admission.left(self.now, self.now - begins + slack, slack)
                self.begins.remove((begins, slack))
            batch, self.begins = self.begins[:BATCH], self.begins[BATCH:]
            self.taken += len(batch)
            for begins, slack in batch:
                self.waits[slack].append(self.now - (begins - slack))
                self.line.answered(self.now, begins - slack, slack)
            self.admission.worked(self.time)
            behind = sum(begins >= self.now for begins, _ in self.begins)
            self.admission.heard(self.now, len(self.begins), self.taken, 1, behind)


@pytest.mark.parametrize("multiple", [3, 10])
@pytest.mark.parametrize("slack", [1.0, 8.0])
def test_who_has_a_slack_waits_as_long_as_that_allows_and_whoever_is_urgent_waits_no_longer_for_it(slack, multiple):
    shared = Shared(slack)
    shared.flood(1, BATCH // 4, 0)
    shared.flood(30, BATCH // 4, multiple * BATCH)
    assert max(shared.waits[0.0]) <= max(STANDING, 3 * TIME) + 1.01 * TIME  # it is not known yet what is left to the others
    for waits in shared.waits.values():
        waits.clear()
    shared.flood(170, BATCH // 4, multiple * BATCH)
    assert shared.turned_away[0.0] == 0 and max(shared.waits[0.0]) <= 1.01 * TIME
    assert slack / 1.25 - 1.01 * TIME <= max(shared.waits[slack][100:]) <= slack
    assert shared.taken >= 199 * BATCH


def test_before_a_function_that_refuses_batches_the_patient_are_left_what_the_urgent_do_not_take():
    throttle = Throttle(4)
    throttle.rounds(int((THROTTLE + 1.0) / TIME), 3 * 4 * BATCH)
    admission = throttle.admission
    refuses = {
        (slack, part): next(n for n in range(10**6) if admission.refuses(throttle.now, n, "m", slack, part) is not None)
        for slack, part in ((0.0, 1.0), (9.0, 1.0), (9.0, 0.5), (9.0, 1e-3), (0.01, 1e-3))
    }
    urgent = refuses[0.0, 1.0]
    assert refuses[9.0, 1.0] == refuses[0.01, 1e-3] == urgent
    assert refuses[9.0, 0.5] == pytest.approx(urgent / 2, abs=1)
    assert refuses[9.0, 1e-3] <= 1


def test_while_a_throttle_may_end_nobody_is_refused_however_patient():
    throttle = Throttle(4)
    throttle.rounds(int(3.0 / TIME), 3 * 4 * BATCH)
    assert throttle.admission.refuses(throttle.now, throttle.waiting, "m", 9.0, 1e-3) is None


def test_where_those_who_are_urgent_take_the_servers_no_more_than_a_batch_of_others_waits():
    shared = Shared(8.0)
    shared.flood(20, 2 * BATCH, 2 * BATCH)
    refused = shared.turned_away[8.0]
    shared.flood(300, 2 * BATCH, 2 * BATCH)
    assert shared.turned_away[8.0] == refused + 300 * 2 * BATCH


def test_a_queue_of_patient_ones_is_no_overload_to_who_stands_before_them():
    shared = Shared(8.0)
    shared.flood(50, 2, 3 * BATCH)
    assert shared.admission._patient.overload and not shared.admission._urgent.overload
    shared.flood(1, 4 * BATCH, 0)  # as a burst is let in where nobody else waits
    assert shared.turned_away[0.0] == 0
    while shared.begins:
        shared.flood(1, 0, 0)
        if len(shared.begins) > 4 * BATCH:
            assert shared.admission._patient.overload  # as long as they are too many
    shared.flood(10, 0, 0)
    assert not shared.admission._patient.overload


def test_who_is_patient_waits_no_longer_than_callers_do_or_those_like_him_stay():
    shared = Shared(PATIENCE)  # as long as the time of callers
    shared.flood(300, 0, 3 * BATCH)
    assert 0.7 * PATIENCE < max(shared.waits[PATIENCE]) <= PATIENCE - TIME
    leaving = Shared(8.0)
    leaving.flood(300, 0, 3 * BATCH, stay=2.0)
    assert leaving.admission._patient.stay == pytest.approx(2.0, abs=0.2) and leaving.admission._urgent.stay == math.inf
    assert len(leaving.begins) <= 2.0 * RATE


def test_a_drop_after_bounds_who_has_a_slack_by_that_where_it_is_longer():
    shared = Shared(4.0, drop_after=1.0)
    shared.flood(200, BATCH // 4, 3 * BATCH)
    assert shared.turned_away[0.0] == 0 and 2.8 <= max(shared.waits[4.0]) <= 4.0
    near = Shared(0.5, drop_after=1.0)
    near.flood(200, 0, 3 * BATCH)
    assert max(near.waits[0.5]) == pytest.approx(1.0, abs=0.15)
