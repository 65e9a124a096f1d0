"""What the server's /metrics holds: names, their labels, and which are histograms."""

from __future__ import annotations

METRICS: dict[str, tuple[str, ...]] = {
    "taslak_requests_total": ("model", "endpoint", "status"),
    "taslak_requests_running": ("model",),
    "taslak_requests_waiting": ("model",),
    "taslak_prompt_tokens_total": ("model",),
    "taslak_cached_prompt_tokens_total": ("model",),
    "taslak_generation_tokens_total": ("model",),
    "taslak_time_to_first_token_seconds": ("model",),
    "taslak_time_per_output_token_seconds": ("model",),
    "taslak_request_seconds": ("model",),
    "taslak_cost_per_million_tokens": ("model",),
    "taslak_spec_decode_num_drafts_total": ("model", "method"),
    "taslak_spec_decode_num_draft_tokens_total": ("model", "method"),
    "taslak_spec_decode_num_accepted_tokens_total": ("model", "method"),
    "taslak_spec_decode_num_accepted_tokens_per_pos_total": ("model", "method", "position"),
    "taslak_spec_decode_acceptance_rate": ("model", "method"),
    "taslak_spec_decode_alpha": ("model", "method"),
    "taslak_speculation_on": ("model",),
    "taslak_monitor_events_total": ("model", "kind"),
    "taslak_monitor_events_open": ("model",),
    "taslak_prefix_cache_bytes": ("model",),
}

HISTOGRAMS = frozenset(
    {
        "taslak_time_to_first_token_seconds",
        "taslak_time_per_output_token_seconds",
        "taslak_request_seconds",
    }
)
