"""How a latency and a table are said, to people."""

from __future__ import annotations

from sluice.batching.policy import INF, Policy

OTHER_RATE = 0.1  # by how much it is another


def milliseconds(seconds: float) -> str:
    """Seconds as people read latencies: four significant digits of milliseconds."""
    return f"{1e3 * seconds:.4g} ms"


def promised(seconds: float) -> str:
    """A latency that was asked for: as ``milliseconds``, and from 10 s on in seconds, so that who meant milliseconds sees it."""
    return milliseconds(seconds) if seconds < 10 else f"{seconds:.4g} s"


def is_other_rate(rate: float, recorded_rate: float) -> bool:
    """Whether arrivals on record are of another rate than those of a process."""
    return abs(recorded_rate / rate - 1) > OTHER_RATE


def two_digits(part: float) -> str:
    """A part in percent, of which two digits matter: 100 of all."""
    return f"{float(f'{100 * part:.2g}'):g}"


def between(low: str, high: str) -> str:
    """From one end to the other, as they are written; one number where both are written alike."""
    return low if low == high else f"{low} to {high}"


def in_brackets(value: str, low: str, high: str) -> str:
    """The interval of a value, as they are written, to stand behind it; nothing where all three are written alike."""
    return "" if value == low == high else f" ({between(low, high)})"


def less(part: float) -> str:
    """That so large a part is saved, in percent, or how much more it is; what is below a hundredth of a percent is told as that."""
    told = f"{100 * abs(part):.2f} %"
    if told == "0.00 %":
        return "saves less than 0.01 %" if part else "saves nothing"
    return f"saves {told}" if part > 0 else f"costs {told} more"


def leaves(policy: Policy) -> str:
    """With how many requests, or after how long, a batch leaves."""
    if policy.max_batch_size == 1:
        return "one by one"
    timeouts = [hold for hold in policy.hold if 0 < hold < INF]
    if not timeouts:
        return f"up to {policy.max_batch_size}, at once"
    shortest, longest = min(timeouts), max(timeouts)
    after = milliseconds(longest) if shortest == longest else f"{1e3 * longest:.3g} to {1e3 * shortest:.3g} ms"
    return f"{policy.max_batch_size} or {after}"


def holds_by_number(table: Policy) -> str:
    """The holds with one waiting and some others: ``190 ms with one waiting, 180 ms with 8``."""
    numbers = [n for n in (1, table.max_batch_size // 4, table.max_batch_size - 1) if n > 0]
    holds = {milliseconds(table.hold[n]): n for n in sorted(numbers, reverse=True)}
    named = [f"{hold} with {'one waiting' if n == 1 else n}" for hold, n in reversed(holds.items())]
    return ", ".join(named)
