"""Real small RLHF runs that over-optimise: Gao et al.'s design at a size that a CPU runs.

Belongs here: the toy language and its gold reward, the training of proxy reward models and of
policies against them (extra ``lab``), the recorded runs that ship with the package, and what is
computed from them alone. Never: a stop rule, or a label that a stop rule had a part in.

The recorded series need no extra: `evalstop.lab.series.recorded_runs`.
"""
