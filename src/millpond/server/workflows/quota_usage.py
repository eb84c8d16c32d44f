"""The usage of quotas by the minute, as this process has seen it since it began: requests, and those that were refused.

Invariants:
* at most `MINUTES_MAX` windows of a quota are retained, the newest ones.
"""

from __future__ import annotations

from typing import Final

from littlehorse.model import (
    ListQuotaUsageMetricsRequest,
    MetricsList,
    MetricWindow,
    MetricWindowId,
    MetricWindowType,
    PrincipalId,
    QuotaId,
    TenantId,
)

from millpond.clock import Clock
from millpond.server.workflows.metric_windows import MINUTE_MS
from millpond.server.workflows.run_filters import instant_of
from millpond.workflows.engine import key_of

__all__ = ("QuotaUsage",)

MINUTES_MAX: Final = 1_440
"""The windows of a quota that are retained: a day."""


class QuotaUsage:
    """The windows of the quotas of a service. Used from its event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, ...], dict[int, MetricWindow]] = {}

    def note(self, quota: tuple[str, ...], delay_seconds: float) -> None:
        """Count a request, and the time for which it was sent away, 0.0 for one that was let in."""
        at = self._clock.now_ms() // MINUTE_MS * MINUTE_MS
        windows = self._windows.setdefault(quota, {})
        if at not in windows:
            while len(windows) >= MINUTES_MAX:
                del windows[next(iter(windows))]
            windows[at] = _window(quota, at)
        usage = windows[at].quota_usage
        usage.requests_observed += 1
        usage.requests_throttled += delay_seconds > 0
        usage.total_throttle_time_ms += int(1000 * delay_seconds)

    def listed(self, request: ListQuotaUsageMetricsRequest) -> MetricsList:
        """The windows of a quota, in their order.

        Raises: `Invalid` for an instant that is none.
        """
        times = {name: instant_of(request, name) for name in ("window_start", "window_end") if request.HasField(name)}
        windows = self._windows.get(tuple(map(str, key_of(request.quota_id))), {})
        usage = [
            windows[at] for at in sorted(windows)
            if times.get("window_start", at) <= at <= times.get("window_end", at)
        ]  # fmt: skip
        return MetricsList(windows=usage)


def _window(quota: tuple[str, ...], at: int) -> MetricWindow:
    tenant, *principal = quota
    name = QuotaId(tenant=TenantId(id=tenant), principal=PrincipalId(id=principal[0]) if principal else None)
    window = MetricWindow(id=MetricWindowId(quota_id=name, metric_type=MetricWindowType.QUOTA_USAGE_METRIC))
    window.id.window_start.FromMilliseconds(at)
    return window
