"""The frame of all campaigns: worlds that live by a seed, are disturbed by faults, and are held against an oracle.

| module | holds |
|---|---|
| `world` | a world: the option for the length of a run, whether a seed decides all of it, and how to run it |
| `draws` | actors and faults, drawn by their weights |
| `findings` | all that an oracle found wrong, by its word; threads may share them |
| `history` | the file of events that a failed campaign leaves behind |
| `report` | the outcome of a run: what was done, what was wrong, for people and as JSON |
| `shrinking` | the shortest run of a seed that still fails |
| `main` | the command line: seeds, lengths, the failing seed, its shortest run and the command that replays it |

| world | runs | under | against |
|---|---|---|---|
| `simulation` | a pond and its follower | crashes, power cuts, full disks, lost answers | models of the log |
| `interleaving` | threads as processes on a repository | deaths at any call of a store | every state there was |
| `chaos` | three nodes, with writers and readers | networks, kills, disks, clocks, orders | acknowledged loads |
| `proof` | the demo's pipeline, with Spark | kills of server, worker and driver | the demo in plain Python |

The first two are exact: a seed and a length are a run, which is the same in every process. So a failing run is made
shorter. Of the other two the seed decides the faults and the data, and the machine decides the rest.

Each world has its own actors, faults and models: they act on different things at different moments, and what is shared
of them is their drawing. A plan of faults that lasts (chaos) is no plan of one fault for an action (simulation).
"""
