"""Curves, statement and page on real dashboards: TensorBoard, MLflow and Weights & Biases, all with local stores."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, Plan
from bayesdp.loggers import dashboard, log_run
from bayesdp.report.curve_points import point_now, points_along

STEPS, RECORDS = 70, 60


def run(steps=STEPS, caveats=(), **declared):
    """Return the ledger of a short run in which half of the people have small norms."""
    norms = np.linspace(0.05, 2.0, RECORDS) ** 2
    ledger = Ledger(**declared)
    for _ in range(steps):
        ledger.step(noise_std=1.0, sample_rate=0.05, clip=1.0, audit=norms, caveats=caveats)
    return ledger


class TensorBoardStore:
    def __init__(self, folder):
        tensorboard = pytest.importorskip("torch.utils.tensorboard")
        self.folder, self.log = folder, tensorboard.SummaryWriter(folder)

    def curve(self, name):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.log.flush()
        events = EventAccumulator(str(self.folder)).Reload()
        if name not in events.Tags()["scalars"]:
            return []
        return [(event.step, event.value) for event in events.Scalars(name)]

    def text(self, name):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self.folder)).Reload()
        return events.Tensors(f"{name}/text_summary")[-1].tensor_proto.string_val[0].decode()

    def page(self):
        return (self.folder / "report.html").read_text()


class MLflowStore:
    def __init__(self, folder):
        mlflow = pytest.importorskip("mlflow")
        mlflow.set_tracking_uri((folder / "mlruns").as_uri())
        experiment = mlflow.create_experiment("private", artifact_location=(folder / "artifacts").as_uri())
        self.mlflow, self.log = mlflow, mlflow.start_run(experiment_id=experiment)
        self.run = self.log.info.run_id

    def curve(self, name):
        history = self.mlflow.MlflowClient().get_metric_history(self.run, name)
        return [(metric.step, metric.value) for metric in history]

    def text(self, name):
        return self.mlflow.artifacts.load_text(f"runs:/{self.run}/{name}.txt")

    def page(self):
        return self.mlflow.artifacts.load_text(f"runs:/{self.run}/report.html")


STORES = {"tensorboard": TensorBoardStore, "mlflow": MLflowStore}


@pytest.fixture(params=STORES)
def store(request, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = STORES[request.param](tmp_path)
    yield store
    if request.param == "mlflow":
        store.mlflow.end_run()
        store.mlflow.set_tracking_uri(None)


def test_a_ledger_becomes_curves_statement_and_page(store):
    ledger = run()
    log_run(ledger, store.log)
    claims = ledger.claims()
    everyone, half = store.curve("epsilon"), store.curve("epsilon_half")
    assert [step for step, _ in everyone] == [step for step, _ in half] == [*range(4, STEPS, 4), STEPS]
    assert everyone[-1][1] == pytest.approx(claims.everyone.epsilon, rel=1e-6)
    assert half[-1][1] == pytest.approx(claims.share(0.5).ex_post.epsilon, rel=1e-6)
    for curve in (everyone, half):
        assert all(before[1] < after[1] for before, after in pairwise(curve))
    assert all(few[1] < most[1] for few, most in zip(half, everyone, strict=True))
    assert "Guarantee for everyone: epsilon at most" in store.text("privacy_statement")
    assert "claims(looks=n)" in store.text("how_to_read_epsilon")
    assert "did not depend on earlier results" in store.text("how_to_read_epsilon")
    assert "Privacy of a training run" in store.page()


def test_figures_that_are_no_bounds_say_so_in_their_names(store):
    log_run(run(steps=5, caveats=["random-draws"]), store.log)
    assert len(store.curve("epsilon")) == len(store.curve("epsilon_half_estimate")) == 5
    assert store.curve("epsilon_half") == []


class TestPoints:
    """What is drawn, whatever the dashboard is."""

    @pytest.mark.parametrize(
        ("caveat", "names"),
        [
            ("zero-out", {"epsilon", "epsilon_half"}),
            ("random-draws", {"epsilon", "epsilon_half_estimate"}),
            ("sampling-mismatch", {"epsilon_estimate", "epsilon_half_estimate"}),
        ],
    )
    def test_names(self, caveat, names):
        assert set(point_now(run(steps=2, caveats=[caveat]), 1e-5, 0.01).named()) == names

    def test_audit_records_that_were_used_give_estimates(self):
        used = run(steps=2, audit_used_for="the learning rate")
        assert set(point_now(used, 1e-5, 0.01).named()) == {"epsilon", "epsilon_half_estimate"}

    def test_few_audit_records_give_no_half(self):
        ledger = Ledger()
        ledger.step(noise_std=1.0, sample_rate=0.05, clip=1.0, audit=[0.1] * 6)
        assert set(point_now(ledger, 1e-5, 0.01).named()) == {"epsilon"}
        assert [set(point.named()) for point in points_along(ledger, ledger.claims())] == [{"epsilon"}]

    def test_without_audit_records_there_is_everyone(self):
        ledger = Ledger()
        for _ in range(3):
            ledger.step(noise_std=1.0, sample_rate=0.05, clip=1.0)
        assert [set(point.named()) for point in points_along(ledger, ledger.claims())] == [{"epsilon"}]
        assert set(point_now(ledger, 1e-5, 0.01).named()) == {"epsilon"}

    def test_without_a_clip_bound_nothing_is_claimed_for_everyone(self):
        ledger = Ledger()
        ledger.step(noise_std=1.0, sample_rate=0.05, clip=None, audit=[0.1] * 20)
        assert set(point_now(ledger, 1e-5, 0.01).named()) == {"epsilon_half"}

    def test_nothing_is_above_everyone_and_a_plan_is_what_everyone_has(self):
        ledger = run(steps=4, plan=Plan(steps=10, noise_std=1.0, sample_rate=0.05, clip=1.0))
        exposed = Ledger()
        exposed.step(noise_std=1.0, sample_rate=0.05, clip=1.0, audit=[5.0] * 20)
        for points in (points_along(ledger, ledger.claims()), points_along(exposed, exposed.claims())):
            assert all(point.half <= point.everyone for point in points)
        planned = {point.everyone for point in points_along(ledger, ledger.claims())}
        assert planned == {ledger.claims().everyone.epsilon}

    def test_a_point_now_is_at_least_that_of_the_claims(self):
        ledger = run()
        claims, now = ledger.claims(), point_now(ledger, 1e-5, 0.01)
        assert claims.everyone.epsilon <= now.everyone * (1 + 1e-9) < 1.02 * claims.everyone.epsilon
        assert now.half == pytest.approx(claims.share(0.5).ex_post.epsilon, rel=1e-9)
        assert point_now(Ledger(), 1e-5, 0.01).named() == {}
        assert all(math.isfinite(value) for value in now.named().values())


def test_other_objects_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="log='PosixPath': expected a SummaryWriter of TensorBoard, the run of"):
        dashboard(tmp_path)


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'bayesdp[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ledger = run(steps=3)
    with wandb.init(mode="offline", dir=tmp_path, project="private") as log:
        log_run(ledger, log)
        log.log({"loss": 1.0})
    rows = offline_history(tmp_path)
    assert [row["privacy_step"] for row in rows if "epsilon" in row] == [1, 2, 3]
    assert [row["epsilon_half"] <= row["epsilon"] for row in rows if "epsilon" in row] == [True] * 3
    assert [row["loss"] for row in rows if "loss" in row] == [1.0]


def offline_history(folder):
    """Return the rows of the file that a run in offline mode leaves: LevelDB's log format, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, rows, whole, block = path.read_bytes(), [], b"", 2**15
    at = 7
    while at + 7 <= len(content):
        if block - at % block < 7:  # too little room for another header
            at += block - at % block
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last piece
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return rows
