"""Processes that work on the same repositories, interleaved at every step by a seed.

turns.py        which process goes on next, and who dies
stores.py       a space, objects and a clock at which a process pauses before and after each call
work.py         the operations: writers, committers, mergers, compactors, collectors, readers
history.py      every state that a branch ever had, and what an operation may change
simulation.py   a whole run; `python -m tests.harness.interleaving --seed N`
"""
