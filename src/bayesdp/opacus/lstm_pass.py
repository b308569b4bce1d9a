"""The pass of audit records through Opacus' LSTM, with few operations for each time step.

Opacus writes its LSTM in Python: each time step calls two linear layers and a dozen small operations, and autograd
repeats them backwards. For a few records that is nearly all that the pass takes. Here a layer is one function for
autograd (``_Lstm``), with its derivative written out. With sigmoid s and

    z_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh = (z_i, z_f, z_g, z_o),    i, f, o = s(z_i), s(z_f), s(z_o),
    g = tanh(z_g),    c_t = f c_{t-1} + i g,    h_t = o tanh(c_t),

and D_t the gradient that h_t receives from outside of the layer, the gradients by h_t, c_t and z_t are

    dh_t = D_t + W_hh^T dz_{t+1},        dc_t = dh_t o tanh'(c_t) + dc_{t+1} f_{t+1},
    dz_t = (dc_t g s'(z_i), dc_t c_{t-1} s'(z_f), dc_t i tanh'(z_g), dh_t tanh(c_t) s'(z_o)).

W_ih x_t is computed for all time steps at once, and so is everything in the second and third line but dh and dc. The
linear layers receive dz_t, as they would have in Opacus' loop: norms are equal to those up to rounding
(tests/with_opacus/test_lstm_pass.py, against autograd with one record at a time).

Opacus' own loop is kept for packed sequences, dropout, autocast, and cells that somebody else looks into.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from opacus.layers.dp_rnn import DPLSTM, DPLSTMCell, RNNLinear
from torch import nn
from torch.nn import functional

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Receive = Callable[[torch.Tensor], None]
"""What a use of a layer does with the gradient by its output, [n, T, out]."""
Note = Callable[[nn.Module, torch.Tensor], Receive]
"""Notes that a layer is used, with its inputs [n, T, in]."""


def take_in_one(module: nn.Module, trained: Collection[nn.Module], note: Note, seed: torch.Tensor) -> None:
    """Let the LSTMs in a ``module`` take all time steps of a layer in one function.

    Only cells both of whose linear layers are in ``trained`` are taken. ``note`` is called for each use of a linear
    layer in place of its hooks; ``seed`` is a tensor whose gradient is asked for, so that the backward pass gets here.
    Call this before hooks are put on the linear layers.
    """
    for lstm in module.modules():
        if type(lstm) is DPLSTM and "forward_layer" not in vars(lstm):
            cells = [cell for cell in lstm.cells if _is_plain(cell) and {cell.ih, cell.hh} <= set(trained)]
            vars(lstm)["forward_layer"] = _Layers(lstm, cells, note, seed)


def _is_plain(cell: Any) -> bool:
    """Return whether a cell does what its class does, and nobody has put hooks on it or its linear layers."""
    if type(cell) is not DPLSTMCell or not type(cell.ih) is type(cell.hh) is RNNLinear:
        return False
    parts = (vars(cell), vars(cell.ih), vars(cell.hh))
    return not any("forward" in part or any(part[name] for name in _HOOKS) for part in parts)


class _Layers:
    """Stands in for ``forward_layer`` of an LSTM, and has its arguments and results."""

    def __init__(self, lstm: DPLSTM, cells: Collection[nn.Module], note: Note, seed: torch.Tensor) -> None:
        self._lstm, self._cells, self._note, self._seed = lstm, cells, note, seed
        self._in_a_loop = lstm.forward_layer

    def __call__(
        self, x: Any, h_0: torch.Tensor, c_0: torch.Tensor, batch_sizes: Any, *, cell: Any, **options: Any
    ) -> Any:
        """Return h_t [T, n, H], h_T [n, H] and c_T [n, H] from x [T, n, D], h_0 and c_0 [n, H]."""
        if not self._applies(x, h_0, c_0, cell) or options["is_packed"]:
            return self._in_a_loop(x, h_0, c_0, batch_sizes, cell=cell, **options)
        if options["reverse_layer"]:
            x = x.flip(0)
        states, last = _Lstm.apply(x, h_0, c_0, self._seed, cell, self._note)
        return states.flip(0) if options["reverse_layer"] else states, states[-1], last

    def _applies(self, x: Any, h_0: torch.Tensor, c_0: torch.Tensor, cell: Any) -> bool:
        return (
            torch.is_grad_enabled()
            and any(cell is each for each in self._cells)
            and cell.ih.training
            and cell.hh.training
            and not self._lstm.dropout
            and isinstance(x, torch.Tensor)
            and x.ndim == 3
            and bool(x.shape[0])
            and x.dtype == h_0.dtype == c_0.dtype == cell.ih.weight.dtype
            and not torch.is_autocast_enabled(x.device.type)
        )


class _Kept(NamedTuple):
    """What the backward pass needs: gates (i, f, g, o) [T, n, 4H], c_0 to c_T, tanh(c_1) to tanh(c_T)."""

    cell: Any
    gates: torch.Tensor
    cells: torch.Tensor
    squashed: torch.Tensor
    receive: tuple[Receive, Receive]


class _Lstm(torch.autograd.Function):
    """All time steps of a layer in one direction."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, h_0: torch.Tensor, c_0: torch.Tensor, seed: torch.Tensor, cell: Any, note: Note
    ) -> tuple[torch.Tensor, torch.Tensor]:
        steps, records, size = x.shape[0], x.shape[1], cell.hidden_size
        bias = None if cell.ih.bias is None else cell.ih.bias + cell.hh.bias
        gates = functional.linear(x, cell.ih.weight, bias)
        hidden, cells = x.new_empty(steps + 1, records, size), x.new_empty(steps + 1, records, size)
        squashed = x.new_empty(steps, records, size)
        hidden[0], cells[0] = h_0, c_0
        h, c = hidden.unbind(), cells.unbind()
        weight = cell.hh.weight.t()
        i, f, g, o = (gate.unbind() for gate in gates.split(size, dim=2))
        i_and_f = gates[:, :, : 2 * size].unbind()
        for t, (whole, tanh) in enumerate(zip(gates.unbind(), squashed.unbind(), strict=True)):
            whole.addmm_(h[t], weight)
            i_and_f[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(f[t], c[t], out=c[t + 1]).addcmul_(i[t], g[t])
            torch.tanh(c[t + 1], out=tanh)
            torch.mul(o[t], tanh, out=h[t + 1])
        given = x.detach().transpose(0, 1), hidden[:-1].transpose(0, 1)
        ctx.kept = _Kept(cell, gates, cells, squashed, (note(cell.ih, given[0]), note(cell.hh, given[1])))
        return hidden[1:].clone(), cells[-1].clone()  # what follows may work in place

    @staticmethod
    def backward(ctx: Any, *received: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError("a derivative of this derivative")
        kept: _Kept = ctx.kept
        cell, gates = kept.cell, kept.gates
        steps, records, size = gates.shape[0], gates.shape[1], cell.hidden_size
        i, f, g, o = gates.split(size, dim=2)
        by_gate = gates.new_empty(steps, records, 4, size)  # what dc and dh are multiplied by; afterwards dz
        by_sigmoid, by_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
        by_sigmoid.grad_input(g, i, grad_input=by_gate[:, :, 0])
        by_sigmoid.grad_input(kept.cells[:-1], f, grad_input=by_gate[:, :, 1])
        by_tanh.grad_input(i, g, grad_input=by_gate[:, :, 2])
        by_sigmoid.grad_input(kept.squashed, o, grad_input=by_gate[:, :, 3])
        by_c, by_h = by_gate[:, :, :3].unbind(), by_gate[:, :, 3].unbind()
        to_c, forget = by_tanh(o, kept.squashed).unbind(), f.unbind()
        whole, weight = by_gate.flatten(2), cell.hh.weight
        dz, outside, dc = whole.unbind(), received[0].unbind(), received[1]
        for t in reversed(range(steps)):
            dh = outside[t] if t == steps - 1 else torch.addmm(outside[t], dz[t + 1], weight)
            dc = torch.addcmul(dc, dh, to_c[t])
            by_c[t].mul_(dc.unsqueeze(1))
            by_h[t].mul_(dh)
            dc = dc * forget[t]
        for receive in kept.receive:
            receive(whole.transpose(0, 1))
        needed = ctx.needs_input_grad
        of_x = whole @ cell.ih.weight if needed[0] else None
        return of_x, dz[0] @ weight if needed[1] else None, dc if needed[2] else None, None, None, None
