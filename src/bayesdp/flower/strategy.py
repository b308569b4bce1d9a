"""``PrivateFedAvg``: federated averaging with central differential privacy for clients, and a ledger of its rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from pathlib import Path
from typing import Any, Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from bayesdp import validation
from bayesdp.claims.plan import Plan
from bayesdp.flower.audit_mod import ASK, NORM, NORMS, REPEATS, REQUEST, UPDATE
from bayesdp.flower.client_draws import ClientDraws
from bayesdp.flower.private_sum import PrivateSum, model_of, moved
from bayesdp.flower.roster import Roster
from bayesdp.flower.run_files import load_model, save_model
from bayesdp.ledger import FLOWER
from bayesdp.randomness import Randomness, Secure
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

_SAME = 1e-6  # relative: norms of equal updates differ by less, however a machine adds up


class PrivateFedAvg(Strategy):
    """Federated averaging whose model is differentially private for each client, with every round in a ledger.

    A round draws clients (``draws``), clips the update of each (its arrays minus those it was sent, all together) to
    norm C = ``clip``, adds the updates up, and releases sum + N(0, (z C)^2) with z = ``noise_multiplier``:

        model <- model + server_rate / divisor * (sum of clipped updates + noise)

    ``divisor`` is fixed and public, such as the number of clients that a round draws on average. A mean over the
    clients that answered would have another sensitivity whenever somebody drops out.

    Formal guarantees, on the conditions that claims state:

    - The step of a round is in the ledger, on disk, before its update is applied: a round whose model anybody can have
      seen is in the ledger, whatever interrupts the server.
    - Clients that do not answer, answer late, fail, or send what cannot be used contribute nothing, and no message or
      log line of this class says how many there were. Metrics of clients that are trained on are dropped: they have
      no noise.
    - Audit clients (``AuditMod``) are never drawn. They measure at the model that the round starts from; whoever does
      not answer is charged at the clip bound in that round.

    The server sees the updates of the clients that it draws: it is trusted, as in all central differential privacy.
    """

    def __init__(
        self,
        *,
        ledger: Ledger | str | Path,
        clip: float,
        noise_multiplier: float,
        draws: ClientDraws,
        divisor: float,
        server_rate: float = 1.0,
        wait_for: int = 2,
        checkpoint: str | Path | None = None,
        randomness: Randomness | None = None,
        local_draws: Literal["watch", "estimate"] = "watch",
        ledger_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the settings; nothing is opened or written before ``start``.

        Args:
            ledger: A ledger, or the path of one: it is created with a plan of ``num_rounds`` steps, or continued.
            clip: The most that the update of a client may contribute, C.
            noise_multiplier: Standard deviation of the noise on the sum, over C.
            draws: ``PoissonClients(rate)`` or ``FixedSizeClients(count)``.
            divisor: What the noisy sum is divided by, fixed and public.
            server_rate: The server's learning rate.
            wait_for: How many clients, of both roles, must be connected before the first round.
            checkpoint: Where to keep the model, so that a server that is started again goes on from it.
            randomness: Where noise and draws come from; by default a cryptographic generator. ``Seeded`` is for
                experiments, and claims say that they are not for release.
            local_draws: "watch" lets audit clients compute some updates twice, to see whether local training draws
                random numbers that nobody is told (the order of batches, dropout); shares are then estimates.
                "estimate" says that it does, and saves the second pass.
            ledger_options: Further arguments of ``Ledger.create``, such as ``unit="person"``.

        Raises InvalidInputError for values out of range.
        """
        super().__init__()
        self.clip = validation.positive("clip", clip)
        self.noise_multiplier = validation.noise_multiplier(noise_multiplier)
        self.draws = draws
        self.divisor = validation.positive("divisor", divisor)
        self.server_rate = validation.positive("server_rate", server_rate)
        if local_draws not in ("watch", "estimate"):
            raise refuse("local_draws", local_draws, '"watch" or "estimate"')
        self._wait_for = validation.count("wait_for", wait_for, minimum=1)
        self._given, self._options = ledger, dict(ledger_options or {})
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._randomness = randomness if randomness is not None else Secure()
        self._local_draws = local_draws == "estimate"
        self._roster = Roster()
        self._open: Ledger | None = ledger if isinstance(ledger, Ledger) else None
        self._arrays = ArrayRecord()
        self._timeout = 3600.0
        self._drawn: set[int] = set()
        self._audited: dict[int, str] = {}

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run. Raises InvalidInputError before ``start`` has opened it."""
        if self._open is None:
            raise refuse("ledger", str(self._given), "start to be called first")
        return self._open

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum of clipped updates."""
        return self.noise_multiplier * self.clip

    def summary(self) -> None:
        """Log the settings."""
        log(INFO, "\t├──> Clip bound %s, noise multiplier %s, %s", self.clip, self.noise_multiplier, self.draws)
        log(INFO, "\t└──> Ledger: %s", self.ledger.path)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run ``num_rounds`` rounds, or what the ledger has left of them, and return Flower's result.

        Rounds are counted by the steps in the ledger, also across restarts of the server: a round that was recorded
        when the server died is not repeated, so a planned run keeps its plan. ``evaluate_fn`` gets these numbers; keys
        of the result count from this start. Arguments are those of Flower.

        Raises InvalidInputError for arrays that are not finite floating-point numbers, or if no client has the mod, and
        LedgerError if ledger and checkpoint do not belong together.
        """
        rounds = validation.count("num_rounds", num_rounds, minimum=1)
        model_of(initial_arrays)
        self._timeout = timeout
        while len(connected := self._roster.ask(grid, timeout)) < self._wait_for:
            time.sleep(1)
        self._open = self._opened(rounds, sorted(set(self._roster.audit_nodes(connected).values())))
        done = self._open.steps
        arrays = initial_arrays
        if self._checkpoint is not None and self._checkpoint.exists():
            arrays = load_model(self._checkpoint, self._open)
        left = max(rounds - done, 0)
        result = super().start(
            grid,
            arrays,
            left,
            timeout,
            train_config,
            evaluate_config,
            None if evaluate_fn is None else lambda number, model: evaluate_fn(done + number, model),
        )
        if not left:
            result.arrays = arrays
        return result

    def _opened(self, rounds: int, audit: list[str]) -> Ledger:
        if self._open is not None:
            return self._open
        path = Path(cast("str | Path", self._given))
        if path.exists():
            return Ledger.open(path)
        plan = Plan(steps=rounds, noise_std=self.noise_std, sample_rate=self.draws.accounted_rate, clip=self.clip)
        settings: dict[str, Any] = {"plan": plan, "audit_ids": audit or None, **self._options}
        return Ledger.create(path, **settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round: to the clients that were drawn, and to all audit clients."""
        step = self.ledger.steps + 1
        self._arrays = arrays
        connected = self._roster.ask(grid, self._timeout)
        drawn = self.draws.draw(self._randomness, self._roster.training_nodes(connected), step=step)
        known = self.ledger.audit_ids or ()
        audit = self._roster.audit_nodes(connected)
        self._drawn, self._audited = set(drawn), {node: name for node, name in audit.items() if name in known}
        config["server-round"] = step
        content = {"arrays": arrays, "config": config}
        looks = 2 if not self._local_draws and step & (step - 1) == 0 else 1  # at rounds 1, 2, 4, 8, ...
        return [
            *_messages({**content, REQUEST: ConfigRecord({ASK: UPDATE})}, drawn),
            *_messages({**content, REQUEST: ConfigRecord({ASK: NORM, REPEATS: looks})}, self._audited),
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Record the round, and return the model that it leads to; there are no metrics."""
        updates: dict[int, ArrayRecord] = {}
        norms: dict[str, list[float]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                continue
            if node in self._drawn:
                records = list(reply.content.array_records.values())
                if len(records) == 1:
                    updates.setdefault(node, records[0])
            elif node in self._audited and REQUEST in reply.content.metric_records:
                answered = _floats(reply.content.metric_records[REQUEST].get(NORMS))
                norms.setdefault(self._audited[node], []).extend(answered)
        before = model_of(self._arrays)
        total = PrivateSum.of(before, (updates[node] for node in sorted(updates)), self.clip)
        step = self.ledger.steps + 1
        noisy = total.released(self._randomness, self.noise_std, step=step)
        self.ledger.step(
            noise_std=self.noise_std,
            sample_rate=self.draws.accounted_rate,
            clip=self.clip,
            audit=self._audit_norms(norms),
            batch=total.norms,
            source=FLOWER,
            caveats=self._caveats(),
        )
        arrays = moved(self._arrays, noisy, self.server_rate / self.divisor)
        if self._checkpoint is not None:
            save_model(self._checkpoint, arrays, self.ledger)
        return arrays, None

    def _audit_norms(self, norms: Mapping[str, list[float]]) -> list[float] | None:
        """Return the norm of each audit client, the clip bound where it is not known; None if there are no clients.

        Of several norms (looks at random draws, several nodes with one id) the largest counts, and one that is no norm
        leaves the clip bound.
        """
        ids = self.ledger.audit_ids
        if not ids:
            return None
        charged: list[float] = []
        for name in ids:
            answered = norms.get(str(name), [])
            if not answered or not all(0 <= norm < float("inf") for norm in answered):
                charged.append(self.clip)
                continue
            charged.append(max(answered))
            if max(answered) - min(answered) > _SAME * max(answered):
                self._local_draws = True
        return charged

    def _caveats(self) -> frozenset[str]:
        caveats = {"independent-answers"} | self.draws.caveats
        if self._local_draws and self.ledger.audit_ids:
            caveats |= {"random-draws"}
        if self._randomness.reproducible:
            caveats |= {"seeded"}
        return frozenset(caveats)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: what clients measure on their data has no noise. Use ``evaluate_fn`` on public data."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing; see ``configure_evaluate``."""
        return None


def _messages(content: Mapping[str, Any], nodes: Iterable[int]) -> list[Message]:
    return [Message(RecordDict(dict(content)), node, MessageType.TRAIN) for node in nodes]


def _floats(values: object) -> list[float]:
    return [float(value) for value in values if isinstance(value, float | int)] if isinstance(values, list) else []
