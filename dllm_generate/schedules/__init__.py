"""Schedules, the iteration managers: which positions may be committed now, and when to move on."""

from .base import SCHEDULES, Blocks, Schedule

__all__ = ["SCHEDULES", "Blocks", "Schedule"]
