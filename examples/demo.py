"""`make demo`: what evalstop does, on one real-looking curve."""

from evalstop import ConsecutiveDecline, Monitor

monitor = Monitor(ConsecutiveDecline(k=2), direction="max")
for step, score in enumerate([0.52, 0.58, 0.63, 0.66, 0.65, 0.62, 0.57]):
    verdict = monitor.update(score=score, step=100 * step)
    print(f"step {100 * step:4d}  score {score:.2f}  {verdict.reason}")
    if verdict.alarm:
        break
