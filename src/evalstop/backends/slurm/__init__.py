"""Attach to a Slurm cluster through its own commands: guard its jobs, place none of them.

    optin.py     what `--comment=evalstop:...` on a job says
    jobs.py      the job as policies and custody may see it
    tenants.py   whose it is, whatever its comment says
    records.py   what squeue, sinfo and scontrol print, of old and new versions, as records
    client.py    the commands, each with a time limit, and a pause after failures
    backend.py   the `evalstop.ports.Backend` made of these

Never here: an opinion on scores, or a Slurm configuration.
"""

from evalstop.backends.slurm.backend import SlurmBackend
from evalstop.backends.slurm.client import SlurmClient
from evalstop.backends.slurm.tenants import Tenants

__all__ = ["SlurmBackend", "SlurmClient", "Tenants"]
