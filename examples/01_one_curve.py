"""Judge one curve, evaluation by evaluation, with three rules at once."""

from evalstop import Monitor, parse_rule

SCORES = {100: 0.52, 200: 0.61, 300: 0.66, 400: 0.67, 500: 0.64, 600: 0.58, 700: 0.50}
STDERR = 0.021  # 500 items

for spec in ("default", "consecutive:k=2", "drop:g=4,k=2"):
    monitor = Monitor(parse_rule(spec), direction="max")
    for step, score in SCORES.items():
        verdict = monitor.update(score=score, step=step, stderr=STDERR)
        if verdict.alarm:
            print(f"{spec:16} stops at step {step}: {verdict.reason}")
            break
    else:
        print(f"{spec:16} lets the run go on: {verdict.reason}")
