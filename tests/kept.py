"""Forgetting what bayesdp keeps: for tests that time a computation, or compare it with a second one."""

from bayesdp.guarantees import fixed_size, gaussian_pld, worst_case
from bayesdp.mechanisms import log_moments
from bayesdp.profiles import record_profiles


def forget_results():
    """Make bayesdp compute everything it is asked for next."""
    log_moments._KEPT.forget()
    record_profiles._KEPT.forget()
    gaussian_pld._KEPT.forget()
    fixed_size._step_divergences.cache_clear()
    worst_case._step_divergences.cache_clear()
    worst_case._worst_case_of_steps.cache_clear()
