"""Jobs of the parity tests: curves that rise, and fall where they hack; three types, some fail."""

import numpy as np

from evalstop.core.job import JobSpec
from evalstop.workloads.job import SimJob


def curve_of(random, evals, peak):
    """Return the share of service at each evaluation, true and observed scores; some are NaN."""
    share = np.arange(1, evals + 1) / max(evals, 1)
    truth = np.minimum(share, 2 * peak - share)
    scores = truth + random.normal(0, 0.05, evals)
    scores[random.random(evals) < 0.05] = np.nan
    return share, truth, scores


def job_of(index, curve, *, peak, duration, submit_s, deliveries, **spec):
    """Return the job of an index; ``peak``: share of service at which it is best, 1 if healthy."""
    share, truth, scores = curve
    return SimJob(
        spec=JobSpec(
            id=f"j{index}",
            tenant=f"t{index % 3}",
            job_type=["rlhf", "dpo", "lora"][index % 3],
            **spec,
        ),
        submit_s=submit_s,
        duration_s=duration,
        eval_offsets=(share * duration).tolist(),
        eval_steps=list(range(1, len(share) + 1)),
        scores=scores.tolist(),
        true_scores=truth.tolist(),
        stderrs=[0.05] * len(share),
        losses=(1.0 - 0.5 * share).tolist(),
        deliveries=deliveries,
        hacking=peak < 1,
        peak_s=peak * duration,
        fails_at_s=duration / 2 if index % 11 == 5 else None,
    )
