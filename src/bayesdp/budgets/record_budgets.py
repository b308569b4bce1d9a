"""A privacy filter: no record's total cost can exceed the budget that was fixed before the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Self, cast

import numpy as np

from bayesdp import validation
from bayesdp.budgets.balances import HORIZON, Balances
from bayesdp.budgets.clip_costs import Setting, clip_costs
from bayesdp.claims.claim import Claim
from bayesdp.profiles.conversion import best_order, costs_for, delta_from_costs, epsilon_from_costs
from bayesdp.validation import FloatArray, refuse

_STATE_VERSION = 1
_ARRAYS = ("remaining", "norms", "exhausted")


class RecordBudgets:
    """Budgets B_lambda, equal for all n = ``records`` training records, that no run can overspend.

    ``step`` is called before each step of the training. It returns the norm to which every record, sampled or not, must
    be clipped, and charges kappa_lambda(norm / noise_std) to its balance. That norm is C_i = min(clip, the norm of the
    record at the last refresh), or the clip before the first refresh. A record that cannot pay for it at every lambda
    is clipped to the largest norm it can pay for, and to exactly 0 from then on. Charges are for norms rounded up to a
    grid of 1024 per octave; what pays for less than 2^-10 of the clip pays for nothing.

    Formal guarantee: classic (epsilon, delta)-DP for everyone, in both directions of add/remove, wherever the run stops
    and however many steps it has, with delta <= min_lambda c_lambda e^{B_lambda - lambda epsilon}. For every record and
    lambda, exp(lambda L_t - K_t) is a supermartingale (L_t: privacy loss after t steps, K_t: costs charged), and K_t <=
    B_lambda always (Feldman & Zrnic 2021, "Individual privacy accounting via a Rényi filter"). Budgets of
    ``for_gaussian`` give the exact Gaussian profile at mu instead (Smith & Thakurta 2022, "Fully adaptive composition
    for Gaussian differential privacy").

    It assumes that gradients are clipped to the norms returned by the step, that noise of standard deviation
    ``noise_std`` is on their sum, that sampling is Poisson, that a record's norm at a refresh depends only on that
    record and on what has been released, and that noise, rate and clip depend only on what has been released.

    Norms, clip norms and balances are private. Methods that read them out are named ``private_``; their results are not
    for release.

    ``budgets`` maps each lambda to its budget. No records, no budgets, orders out of range and budgets that are
    negative or not finite raise InvalidInputError.
    """

    def __init__(self, records: int, budgets: Mapping[float, float]) -> None:
        self.records = validation.count("records", records, minimum=1)
        if not isinstance(budgets, Mapping) or not budgets:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refuse("budgets", budgets, "a mapping from lambda to its budget")
        lambdas = validation.lambdas(list(budgets), whole=False)
        values = [validation.non_negative(f"budgets[{order!r}]", value) for order, value in budgets.items()]
        self._lambdas = lambdas
        self._budgets = np.array(values)
        self._mu: float | None = None
        self._steps = 0
        try:
            self._balances = Balances(
                remaining=np.repeat(self._budgets[:, None], self.records, axis=1),
                norms=np.full(self.records, np.inf),
                exhausted=np.zeros(self.records, bool),
            )
        except MemoryError:
            raise refuse("records", records, "as many records as memory holds balances for") from None

    @classmethod
    def for_epsilon(cls, records: int, *, epsilon: float, delta: float, lambdas: Sequence[float] | None = None) -> Self:
        """Return budgets that prove (epsilon, delta): lambda epsilon + log delta - log c_lambda, rounded down.

        By default at a single whole lambda, because every further one is a further limit: the one that allows most
        Gaussian steps, whose costs grow like lambda (lambda + 1). ``lambdas`` names others; those at which no budget
        above 0 is left are skipped. Raises InvalidInputError if that leaves none, or for arguments out of range.
        """
        epsilon = validation.positive("epsilon", epsilon)
        delta = validation.probability("delta", delta)
        chosen = validation.lambdas([best_order(epsilon, delta)[0]] if lambdas is None else lambdas, whole=False)
        budgets = {float(k): float(b) for k, b in zip(chosen, costs_for(chosen, epsilon, delta), strict=True) if b > 0}
        if not budgets:
            raise refuse("epsilon", epsilon, f"enough for a budget above 0 at delta={delta!r} and some lambda")
        return cls(records, budgets)

    @classmethod
    def for_gaussian(cls, records: int, *, mu: float) -> Self:
        """Return budgets for runs without sampling: squared exposures of a record sum to at most mu^2.

        They prove the exact profile of one Gaussian release of exposure ``mu``, a smaller epsilon than any lambda would
        prove. Steps must have ``sample_rate`` 1. Raises InvalidInputError unless mu is finite and at least 0.
        """
        mu = validation.non_negative("mu", mu)
        # The cost of a Gaussian step at lambda = 1 is its squared exposure.
        budgets = cls(records, {1.0: mu * mu * (1 - 2.0**-50)})
        budgets._mu = mu
        return budgets

    @property
    def budgets(self) -> dict[float, float]:
        """The budget of each lambda, as declared."""
        return dict(zip(self._lambdas.tolist(), self._budgets.tolist(), strict=True))

    @property
    def steps(self) -> int:
        """How many steps have been charged."""
        return self._steps

    # Accounting

    def step(self, *, noise_std: float, sample_rate: float, clip: float) -> FloatArray:
        """Charge one step to every record and return the norms [n] to which gradients must be clipped in this step.

        The array is private, read-only, and valid until the next call: copy it to keep it. ``noise_std`` is the
        standard deviation of the noise on the sum. Raises InvalidInputError, and changes nothing, for settings out of
        range, and where ``sample_rate`` < 1 but a lambda is not whole or the budgets are ``for_gaussian``.
        """
        setting = self._setting(noise_std, sample_rate, clip)
        levels = self._balances.step(setting, clip_costs(setting, tuple(self._lambdas.tolist()))).view()
        self._steps += 1
        levels.flags.writeable = False
        return levels

    def refresh(self, norms: Any) -> None:
        """Take the gradient norms [n] of all records at the present model, before clipping, from the next step on.

        The array is copied. Raises InvalidInputError, and changes nothing, unless there is a finite norm of at least 0
        for every record.
        """
        array = validation.non_negative_array("norms", norms)
        if array.shape != (self.records,):
            raise refuse("norms", f"array of shape {array.shape}", f"one norm for each of records={self.records}")
        self._balances.refresh(array)

    def _setting(self, noise_std: object, sample_rate: object, clip: object) -> Setting:
        setting = Setting(
            noise_std=validation.noise_std(noise_std),
            sample_rate=validation.sample_rate(sample_rate),
            clip=validation.positive("clip", clip),
        )
        validation.noise_multiplier(setting.noise_std / setting.clip)
        if setting.sample_rate < 1:
            if self._mu is not None:
                raise refuse("sample_rate", sample_rate, "1, because these budgets are for runs without sampling")
            validation.lambdas(self._lambdas, whole=True)
        return setting

    # Results

    def claim(self, delta: float) -> Claim:
        """Return what the budgets prove at ``delta``, however much of them has been spent: a proved claim for everyone.

        Raises InvalidInputError unless ``delta`` is strictly between 0 and 1.
        """
        delta = validation.probability("delta", delta)
        order = None
        if self._mu is not None:
            from bayesdp.profiles.gaussian_profile import gaussian_epsilon

            epsilon = float(gaussian_epsilon(self._mu, delta))
        else:
            epsilon, best = epsilon_from_costs(self._budgets, self._lambdas, delta, "improved")
            order = float(self._lambdas[best])
        return Claim(
            epsilon=epsilon,
            delta=delta,
            audience="everyone",
            direction="both",
            kind="proved",
            method="enforced budget",
            order=order,
            assumptions=(
                "each step clips every gradient to the norm its record was charged for",
                "a record's norms at a refresh depend on that record and on what was released only",
            ),
            notes=("It holds for the budget; what was charged below it is not a claim.",),
        )

    def delta(self, epsilon: float) -> float:
        """Return the delta that the budgets prove at ``epsilon``; raise InvalidInputError if epsilon is below 0."""
        epsilon = validation.non_negative("epsilon", epsilon)
        if self._mu is not None:
            from bayesdp.profiles.gaussian_profile import gaussian_delta

            return float(gaussian_delta(self._mu, epsilon))
        return delta_from_costs(self._budgets, self._lambdas, epsilon, "improved")[0]

    def private_remaining(self) -> FloatArray:
        """Return what is left of every record's budgets, [n, L], never more than exact. Private."""
        return self._balances.left()

    def private_exhausted(self) -> int:
        """Return how many records have nothing left and are clipped to 0 from the next step on. Private."""
        return int(np.count_nonzero((self._balances.left() == 0).any(axis=1)))

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and copies of arrays, for ``np.savez``, ``torch.save`` or pickle. Private."""
        balances = self._balances
        return {
            **self._declared(),
            "steps": self._steps,
            "taken": balances.taken,
            "setting": [] if balances.setting is None else list(astuple(balances.setting)),
            **{name: getattr(balances, name).copy() for name in _ARRAYS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue, bit for bit, where ``state`` was taken by ``state_dict``; arrays are copied.

        Raises InvalidInputError, and changes nothing, if the budgets differ from these or the state is damaged.
        """
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refuse("state", state, "what state_dict returned")
        for name, value in self._declared().items():
            if name not in state or not _equal(state[name], value):
                raise refuse(name, state.get(name), f"{value!r}, as declared here")
        steps = validation.count("steps", state.get("steps"), minimum=0)
        taken = validation.count("taken", state.get("taken"), minimum=0)
        remaining, norms, exhausted = (self._array(name, state.get(name)) for name in _ARRAYS)
        if (remaining > self._budgets[:, None]).any():
            raise refuse("remaining", float(remaining.max()), "no more than the budgets")
        balances = Balances(remaining=remaining, norms=norms, exhausted=exhausted)
        setting = validation.as_floats("setting", state.get("setting")).ravel().tolist()
        if len(setting) not in (0, 3):
            raise refuse("setting", setting, "noise_std, sample_rate and clip, or nothing")
        if setting:
            planned = self._setting(*setting)
            balances.plan(planned, clip_costs(planned, tuple(self._lambdas.tolist())))
        balances.taken = taken
        if taken > min(steps, HORIZON) or (taken and not setting) or not balances.consistent():
            raise refuse("taken", taken, "a number of steps that was taken and paid for")
        self._balances, self._steps = balances, steps

    def _declared(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "records": self.records,
            "lambdas": self._lambdas.tolist(),
            "budgets": self._budgets.tolist(),
            "mu": [] if self._mu is None else [self._mu],
        }

    def _array(self, name: str, values: Any) -> Any:
        own = getattr(self._balances, name)
        array = np.asarray(values)
        if array.shape != own.shape or array.dtype != own.dtype:
            raise refuse(name, cast(object, values), f"an array of {own.dtype} of shape {own.shape}")
        if own.dtype == np.float64:
            validation.non_negative_array(name, array, finite=name != "norms")
        return array.copy()


def _equal(value: Any, expected: Any) -> bool:
    """Return whether a value of a state, perhaps an array after np.savez, is the expected one."""
    return bool(np.array_equal(np.asarray(value), np.asarray(expected)))
