"""What arrives at a cluster: jobs with their hidden truth, made up from a description and a seed.

Belongs here: curve families, noise, arrivals, sizes, estimates and the scenarios that combine
them, vectorised with numpy. Never here: policies, clusters, time that passes. Functions take a
random generator and never make one; `evalstop.workloads.scenario.generate` alone turns a seed
into a generator.
"""
