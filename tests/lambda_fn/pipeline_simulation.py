"""A pipeline's state with simulated workers and callers in virtual time, while whatever may go wrong does: every run is its seed.

``python -m tests.lambda_fn.pipeline_simulation SEED`` repeats a run and prints what is wrong with it. A seed draws the flow, the
items, and the faults: stages that raise, processes that die, by chance or of a poison, that do not start, that never return;
deadlines; callers that leave; a stop while items are under way. Faults end at ``FAULTS_END``.
"""

from __future__ import annotations

import heapq
import random
import sys
from typing import Any

from sluice.batching import Policy, policy
from sluice.lambda_fn.pipeline.errors import DeadlinePassed, PipelineStopped, ProcessDied, StageDown, StageTimeout
from sluice.lambda_fn.pipeline.flow import Ensemble, Flow, Sequential, Stage, Switch, lay_out
from sluice.lambda_fn.pipeline.marks import SETTLED
from sluice.lambda_fn.pipeline.pipeline_state import MAX_AHEAD, SILENT, Fork, Item, Life, Outcome, PipelineState, Place, Turn

FAULTS_END = 3.0  # s
END_BY = 400.0  # s: longer than every restart and every deadline together
FAULTS = ("raises", "dies", "poison", "no start", "stuck", "deadlines", "leave", "stop", "tight")


class Anything:
    """Stands for what a stage runs."""

    def predict(self, item: Any) -> Any:
        """Never called."""


class Simulation:
    """One run; ``wrong`` is what was found."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.faults = {fault for fault in FAULTS if rng.random() < 0.4}
        self.layout = lay_out(self.draw_flow(rng.randint(1, 3)), 1000)
        # Bytes that hold back only where that is drawn: payloads are of 1 to 3 kB.
        self.max_bytes = rng.choice((4_000, 20_000)) if "tight" in self.faults else 10**9
        self.state = PipelineState(self.layout.rules, self.layout.entry, self.max_bytes)
        self.seed = seed
        self.wrong: list[str] = []
        self.events: list[tuple[float, int, str, Any]] = []
        self.count = 0
        self.now = 0.0
        self.incarnation = [0] * len(self.state.workers)
        self.running: list[dict[int, Any]] = [{} for _ in self.state.workers]
        self.last_given = [0] * len(self.state.workers)  # the place of the first of what a worker was given last
        self.taken_back = 0
        self.items: dict[int, Any] = {}
        self.live: dict[int, Any] = {}  # not answered yet
        self.deadline: dict[int, float | None] = {}
        self.answered: dict[int, tuple[float, bool, Any]] = {}
        self.left: set[int] = set()
        self.deaths_aboard: dict[tuple[int, int], int] = {}
        self.stopped = False
        self.turns = 0

    def draw_flow(self, depth: int) -> Flow:
        """A flow of at most so many levels."""
        rng = self.rng
        kind = rng.choice(("stage", "sequential", "sequential", "ensemble", "switch")) if depth else "stage"
        if kind == "stage":
            timeout = 0.5 if "stuck" in self.faults and rng.random() < 0.7 else None
            workers = rng.randint(1, 3)
            match rng.randint(0, 3):
                case 0 | 1:
                    return Stage(Anything, workers=workers, timeout=timeout)
                case 2:
                    wait = rng.choice((0.0, 0.01, 0.1))
                    return Stage(Anything, workers=workers, batch_size=rng.randint(1, 8), wait=wait, timeout=timeout)
                case _:
                    patient = Policy((policy.INF, 0.05, 0.03), (0, 1, 2))
                    table = rng.choice((policy.greedy(5), policy.deadline(0.2, [0.01, 0.02, 0.03]), policy.no_batching(), patient))
                    return Stage(Anything, workers=workers, policy=table, timeout=timeout)
        parts = [self.draw_flow(depth - 1) for _ in range(rng.randint(1, 3))]
        if kind == "sequential":
            return Sequential(*parts)
        return Ensemble(*parts) if kind == "ensemble" else Switch(lambda item: 0, *parts)

    # What a stage makes of an item, the same whenever it is asked.

    def fate(self, what: str, stage: int, item: int) -> bool:
        """Whether a stage does ``what`` to an item."""
        share = {"raises": 0.1, "poison": 0.03, "stuck": 0.03}[what]
        return what in self.faults and random.Random(f"{self.seed} {what} {stage} {item}").random() < share

    def expected(self, place: Place, value: Any, item: int, errors: set[int]) -> Any:
        """What an item is at its end, from ``place`` on; ``errors`` gets the stages that raise for it."""
        if isinstance(place, int):
            if self.fate("raises", place, item):
                errors.add(place)
            rule = self.layout.rules[place]
            if rule.branches is not None:
                return self.expected(rule.branches[item % len(rule.branches)], value, item, errors)
            return self.expected(rule.then, (place, value), item, errors)
        if isinstance(place, Fork):
            values = [self.expected(branch, value, item, errors) for branch in place.branches]
            return self.expected(place.join, values, item, errors)
        return value

    # The run

    def run(self) -> list[str]:
        """Run to the end; what is wrong."""
        rng = self.rng
        n = rng.randint(1, 120)
        at = 0.5
        pause = rng.choice((0.0, 0.002, 0.02))
        for i in range(n):
            at += rng.expovariate(1 / pause) if pause else 0.0
            self.plan(at, "came", i)
            if "leave" in self.faults and rng.random() < 0.1:
                self.plan(at + rng.random(), "left", i)
        if "dies" in self.faults:
            for _ in range(rng.randint(1, 8)):
                self.plan(rng.uniform(0.0, FAULTS_END), "chance", rng.randrange(len(self.state.workers)))
        if "stop" in self.faults:
            self.plan(rng.uniform(0.5, 2.0), "stop", None)
        self.state.start(0.0)
        self.do(self.state.turn(0.0))
        while self.events and not self.wrong:
            self.now, _, kind, data = heapq.heappop(self.events)
            if self.now > END_BY:
                break
            if kind == "wake" and data != self.turns:
                continue  # a later turn said otherwise
            self.happen(kind, data)
            while self.events and self.events[0][0] == self.now and rng.random() < 0.7:  # several at one wake-up
                _, _, kind, data = heapq.heappop(self.events)
                self.happen(kind, data)
            self.do(self.state.turn(self.now))
            self.check()
        self.check_end()
        return [f"seed {self.seed}, {sorted(self.faults)}: {wrong}" for wrong in self.wrong]

    def plan(self, at: float, kind: str, data: Any) -> None:
        """Something happens at ``at``."""
        self.count += 1
        heapq.heappush(self.events, (at, self.count, kind, data))

    def happen(self, kind: str, data: Any) -> None:
        """Something happens."""
        state, rng = self.state, self.rng
        match kind:
            case "came":
                self.deadline[data] = (
                    self.now + rng.uniform(0.05, 1.0) if "deadlines" in self.faults and rng.random() < 0.5 else None
                )
                self.items[data] = self.live[data] = state.came(data, ("in", data), 1000, self.deadline[data])
            case "left":
                if data in self.items and data not in self.answered:
                    self.left.add(data)
                    state.gone(self.items[data])
            case "ready" | "failed" | "return" | "death" | "kill" | "stopped" | "skipped":
                worker, incarnation, *more = data
                if incarnation != self.incarnation[worker]:
                    return
                if kind == "ready":
                    state.ready(worker, self.now)
                elif kind == "failed":
                    self.incarnation[worker] += 1
                    state.failed_to_start(worker, "no such file", self.now)
                elif kind == "return":
                    numbers = [n for n in more[0] if n in self.running[worker]]
                    outcomes = [self.outcome(worker, n, self.running[worker].pop(n)) for n in numbers]
                    state.returned(worker, outcomes, 0.0001 * len(outcomes), self.now)
                elif kind == "stopped":
                    state.stopped(worker, more[0])
                elif kind == "skipped":
                    state.skipped(worker, more[0])
                else:
                    self.die(worker)
            case "chance":
                if self.state.workers[data].life is Life.READY:
                    self.die(data)
            case "stop":
                self.stopped = True
                state.close()

    def die(self, worker: int) -> None:
        """A process ends with all that it has aboard."""
        w = self.state.workers[worker]
        for ticket in w.aboard.values():
            if not ticket.item.done:
                key = (ticket.number, w.stage.number)
                self.deaths_aboard[key] = self.deaths_aboard.get(key, 0) + 1
        self.incarnation[worker] += 1
        self.running[worker].clear()
        self.state.died(worker, "killed", self.now)

    def outcome(self, worker: int, number: int, sent: tuple[int, Any]) -> Outcome:
        """What a worker makes of one item."""
        item, payload = sent
        stage = self.state.workers[worker].stage
        if self.fate("raises", stage.number, item):
            return Outcome(number, True, ("raised", stage.number), 0)
        if stage.rule.branches is not None:
            return Outcome(number, False, item % len(stage.rule.branches), 0)
        output = (stage.number, payload)
        return Outcome(number, False, output, size_of(output))

    def do(self, turn: Turn) -> None:
        """What the state asks for."""
        rng = self.rng
        for answer in turn.answers:
            if answer.caller in self.answered:
                self.wrong.append(f"item {answer.caller} is answered twice")
            self.answered[answer.caller] = (self.now, answer.failed, answer.payload)
        for worker in turn.start:
            self.running[worker].clear()
            incarnation = self.incarnation[worker]
            fails = "no start" in self.faults and self.now < FAULTS_END and rng.random() < 0.4
            self.plan(self.now + rng.uniform(0.01, 0.2), "failed" if fails else "ready", (worker, incarnation))
        for worker in turn.kill:
            self.plan(self.now + 0.001, "kill", (worker, self.incarnation[worker]))
        for worker, place in turn.stop:
            self.stop(worker, place)
        for worker, tickets in turn.work:
            self.work(worker, tickets)
        self.turns += 1
        if turn.wake_at is not None:
            self.plan(max(self.now, turn.wake_at), "wake", self.turns)

    def work(self, worker: int, tickets: list[Any]) -> None:
        """A worker gets work."""
        rng = self.rng
        w = self.state.workers[worker]
        rule = w.stage.rule
        incarnation = self.incarnation[worker]
        if w.life is not Life.READY:
            self.wrong.append(f"worker {worker} gets work while {w.life}")
        if rule.policy is not None and len(tickets) > rule.policy.max_batch_size:
            self.wrong.append(f"a batch of {len(tickets)} leaves {rule.name}, whose table takes {rule.policy.max_batch_size}")
        if rule.policy is not None and self.running[worker]:
            full = rule.policy.take[-1]
            if len(tickets) != full or len(self.running[worker]) > rule.policy.max_batch_size or rule.timeout is not None:
                self.wrong.append(f"worker {worker} gets a batch of {len(tickets)} beside {len(self.running[worker])} items")
        self.last_given[worker] = tickets[0].place
        if any(ticket.tried for ticket in tickets) and (len(tickets) > 1 or self.running[worker]):
            self.wrong.append("an item that is tried once more has company")
        if len(w.aboard) > MAX_AHEAD:
            self.wrong.append(f"worker {worker} has {len(w.aboard)} items before it")
        dies = stuck = False
        for ticket in tickets:
            item = ticket.item.caller
            if ticket.item.done or ticket.payload is None:
                self.wrong.append(f"item {item} is given to a worker after it was answered")
            self.running[worker][ticket.number] = (item, ticket.payload)
            dies |= self.fate("poison", w.stage.number, item)
            stuck |= rule.timeout is not None and self.fate("stuck", w.stage.number, item)
        if stuck:
            if rng.random() < 0.5:  # it returns just when it is killed
                self.plan(self.now + 0.5005, "return", (worker, incarnation, [ticket.number for ticket in tickets]))
            return
        at = self.now + rng.choice((0.0001, 0.005, 0.05))
        if dies:
            self.plan(at, "death", (worker, incarnation))
            return
        numbers = [ticket.number for ticket in tickets]
        while rule.policy is None and len(numbers) > 1 and rng.random() < 0.5:  # some are sent back before the others
            first = rng.randint(1, len(numbers))
            self.plan(at, "return", (worker, incarnation, numbers[:first]))
            numbers, at = numbers[first:], at + 0.001
        self.plan(at, "return", (worker, incarnation, numbers))

    def stop(self, worker: int, place: int) -> None:
        """A worker begins nothing more of what lies before a place: of its single items it has begun some, of batches the first."""
        rng, w = self.rng, self.state.workers[worker]
        incarnation = self.incarnation[worker]
        aboard = list(w.aboard.values())
        if any(other.stage is w.stage and w is not other and other.life is Life.READY for other in self.state.workers):
            self.taken_back += 1
        else:
            self.wrong.append(f"worker {worker} is stopped, and its stage has no other")
        if place <= aboard[-1].place:
            self.wrong.append(f"worker {worker} is stopped before {place}, and has more")
        begun = self.last_given[worker] if w.stage.batcher is not None else rng.randint(aboard[0].place + 1, place)
        left = [ticket for ticket in aboard if ticket.place >= begun]
        for ticket in left:
            self.running[worker].pop(ticket.number, None)
        # It says so itself when it comes to them.
        self.plan(self.now + rng.choice((0.0, 0.01, 0.06)), "skipped", (worker, incarnation, [ticket.place for ticket in left]))
        if rng.random() < 0.3:  # it was about to begin the first of them
            begun = min(begun + 1, place) if w.stage.batcher is None else place
        self.plan(self.now + SETTLED, "stopped", (worker, incarnation, begun))

    # What must hold

    def check(self) -> None:
        """What must hold after every turn."""
        state = self.state
        self.live = {n: item for n, item in self.live.items() if not item.done}
        if self.turns % 16 == 0:  # it takes longer than all else
            held = sum(map(held_by, self.live.values()))
            if state.bytes != held:
                self.wrong.append(f"{held} bytes are held, and {state.bytes} counted")
        if state.items != len(self.live):
            self.wrong.append(f"{state.items} items are counted")
        at_work = sum(bool(w.aboard) for w in state.workers)
        if not state.closed and state._at_work != at_work:
            self.wrong.append(f"{at_work} workers are at work, and {state._at_work} counted")
        for n in self.live:
            due = self.deadline[n]
            if due is not None and self.now >= due and not state.closed:
                self.wrong.append(f"item {n} is not answered within its time")
        for stage in state._stages:
            if stage.cause is not None and any(w.life is Life.READY for w in stage.workers):
                self.wrong.append(f"{stage.rule.name} counts as down, and a worker is ready")
            if len(set(stage.free)) != len(stage.free) or any(w.aboard or w.life is not Life.READY for w in stage.free):
                self.wrong.append(f"{stage.rule.name}: a worker that is not free counts as free")
            if stage.batcher is not None and not state.closed:
                if stage.rule.workers - stage.batcher.in_flight != len(stage.free):
                    self.wrong.append(
                        f"{stage.rule.name}: {stage.batcher.in_flight} of its servers are busy, {len(stage.free)} free"
                    )
                waiting = [(at, t) for at, t in stage.batcher._waiting if not t.item.done]
                patience = max(h for h in stage.rule.policy.hold[1:] if h < 1e9) if stage.rule.policy else 0.0
                if waiting and stage.free and self.now > waiting[0][0] + patience + 1e-9 and not state._held_back():
                    self.wrong.append(f"{stage.rule.name}: an item waits for longer than it may before a free worker")
            if (
                stage.batcher is None
                and stage.waiting
                and stage.free
                and not state._held_back()
                and not stage.stale
                and not state.closed
            ):
                self.wrong.append(f"{stage.rule.name}: an item waits before a free worker")
            silent = [
                w
                for w in stage.workers
                if self.now > w.since + SILENT + 1e-9 and (len(w.aboard) > 1 if stage.batcher is None else w.ahead)
            ]
            if stage.free and not state.closed and any(w.stop_at < w.places for w in silent):
                self.wrong.append(f"{stage.rule.name}: an item waits behind one that takes long, and a worker is free")
        if any(count > 2 for count in self.deaths_aboard.values()):
            self.wrong.append("an item was tried a third time")

    def check_end(self) -> None:
        """What must hold when nothing happens any more."""
        state = self.state
        for n, item in self.items.items():
            if n in self.left:
                if n in self.answered:
                    self.wrong.append(f"item {n}, whose caller had left, is answered")
                continue
            if n not in self.answered:
                self.wrong.append(f"item {n} is never answered")
                continue
            self.check_answer(n, item)
        if state.items or state.bytes:
            self.wrong.append(f"at the end {state.items} items and {state.bytes} bytes are held")
        for stage in state._stages:
            held = sum(map(len, stage.again)) + len(stage.arrived) + len(stage.waiting) + len(stage.batcher or ())
            live = [t for t in stage.tickets() if not t.item.done or t.payload is not None]
            if live or (held and not stage.stale):
                self.wrong.append(f"at the end {held} items wait before {stage.rule.name}")
        if any(t.payload is not None for w in state.workers for t in w.aboard.values() if t.item.done):
            self.wrong.append("the payload of an item that is answered is kept")
        if len(state._deadlines) > 130:
            self.wrong.append(f"{len(state._deadlines)} deadlines are kept at the end")
        if not state.closed and not self.wrong and any(w.life is not Life.READY for w in state.workers):
            self.wrong.append("a worker was never started again")

    def check_answer(self, n: int, item: Any) -> None:
        """An item has its own output, or an error that it may have."""
        at, failed, payload = self.answered[n]
        errors: set[int] = set()
        output = self.expected(self.layout.entry, ("in", n), n, errors)
        if not failed:
            if errors:
                self.wrong.append(f"item {n} has an output, and stages {errors} raise for it")
            elif payload != output:
                self.wrong.append(f"item {n}: {payload} for {output}")
            return
        if isinstance(payload, tuple):
            if payload[1] not in errors:
                self.wrong.append(f"item {n} has the error of stage {payload[1]}, which raises none for it")
            return
        poisoned = any(self.fate("poison", stage, n) for stage in range(len(self.layout.rules)))
        allowed = {
            DeadlinePassed: self.deadline[n] is not None and at >= (self.deadline[n] or 0.0) - 1e-9,
            PipelineStopped: self.stopped,
            StageDown: "no start" in self.faults,
            ProcessDied: "dies" in self.faults or poisoned,
            # A stuck neighbour takes its batch with it.
            StageTimeout: "stuck" in self.faults,
        }
        if not allowed.get(type(payload), False):
            self.wrong.append(f"item {n} has no right to {payload!r}")


def size_of(payload: Any) -> int:
    """Bytes that a payload has here."""
    if isinstance(payload, list):
        return sum(map(size_of, payload))
    return 3000 if payload[0] in (0, 2, 4, 6, 8) else 1000


def held_by(item: Item) -> int:
    """Bytes of what an item has under way, and of what waits at the ends of its branches."""
    groups = {}
    for ticket in item.tickets:
        group = ticket.group
        while group is not None:
            groups[id(group)] = group
            group = group.outer
    waiting = [payload for group in groups.values() for payload in group.payloads if payload is not None]
    return sum(size_of(ticket.payload) for ticket in item.tickets) + sum(map(size_of, waiting))


def simulate(seed: int) -> list[str]:
    """What is wrong with the run of a seed."""
    return Simulation(seed).run()


if __name__ == "__main__":
    for line in simulate(int(sys.argv[1])) or ["nothing is wrong"]:
        print(line)
