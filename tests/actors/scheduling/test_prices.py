"""Prices are learnt from baskets, are never negative, and stay where nothing is said of them."""

import random

import pytest

from limelight.actors.scheduling.prices import Prices


def learn(prices, true, number, noise=0.0):
    chance = random.Random(0)
    for _ in range(number):
        quantities = [chance.uniform(0, 10) for _ in true]
        cost = sum(price * quantity for price, quantity in zip(true, quantities, strict=True))
        prices.learn(quantities, cost * chance.uniform(1 - noise, 1 + noise))


def test_prices_are_learnt_and_followed_when_they_change():
    prices = Prices(3, 0.97)
    learn(prices, (3.0, 0.5, 7.0), 300, noise=0.1)
    assert prices.values == pytest.approx([3.0, 0.5, 7.0], abs=0.4)
    learn(prices, (1.0, 2.0, 0.1), 300)
    assert prices.values == pytest.approx([1.0, 2.0, 0.1], abs=0.01)


def test_none_is_negative():
    prices = Prices(2, 0.97)
    learn(prices, (5.0, -1.0), 200)
    assert prices.values[1] == 0.0
    assert 3.0 < prices.values[0] < 5.0


def test_what_never_varies_keeps_its_price():
    prices = Prices(2, 0.97)
    learn(prices, (5.0, 1.0), 200)
    for _ in range(1000):
        prices.learn((1.0, 0.0), 5.0)
    assert prices.values == pytest.approx([5.0, 1.0], abs=0.01)
