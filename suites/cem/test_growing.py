"""A cache grows in place, and whoever holds an earlier one notices nothing."""

from __future__ import annotations

import torch

from cemverify.cem.growing import append


def test_a_past_may_be_continued_in_two_ways() -> None:
    past = torch.arange(6.0).view(1, 3, 2)
    first, spare = append(past, torch.ones(1, 1, 2), 1, None)
    one, one_room = append(first, torch.full((1, 1, 2), 2.0), 1, spare)
    other, _ = append(first, torch.full((1, 1, 2), 3.0), 1, spare)
    assert torch.equal(first[:, :3], past)
    assert one[0, -1].tolist() == [2.0, 2.0]
    assert other[0, -1].tolist() == [3.0, 3.0]
    assert one_room is spare  # the first to go on stays, the second is given room of its own


def test_what_fits_is_not_copied() -> None:
    grown, spare = append(torch.zeros(1, 4, 2), torch.ones(1, 1, 2), 1, None)
    again, _ = append(grown, torch.ones(1, 1, 2), 1, spare)
    assert again.data_ptr() == grown.data_ptr()


def test_a_derivative_goes_through() -> None:
    past, new = (torch.ones(1, n, 2, requires_grad=True) for n in (3, 1))
    grown, spare = append(past, new, 1, None)
    assert spare is None
    grown.sum().backward()  # type: ignore[no-untyped-call]
    assert past.grad is not None
    assert new.grad is not None


def test_what_is_appended_later_does_not_disturb_a_derivative() -> None:
    weight = torch.ones(2, requires_grad=True)
    grown, spare = append(torch.zeros(1, 3, 2), torch.ones(1, 1, 2), 1, None)
    first = grown @ weight  # keeps the past for the backward pass
    append(grown, torch.ones(1, 1, 2), 1, spare)
    (product,) = torch.autograd.grad(first.sum(), weight)
    assert product.tolist() == [1.0, 1.0]
