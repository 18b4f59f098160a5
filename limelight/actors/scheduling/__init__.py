"""Scheduling, pure: which sequence computes which tokens in the next step, and on which pages.

No asyncio, no torch, no clock, no logging: the same calls give the same steps. The way in is `planner.Planner`.
"""
