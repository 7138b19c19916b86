"""The live shell: one controller that drives the kernel, and the ways in and out of it.

Belongs here: stamping time, writing the log before acting, carrying out actions, recovery,
reconciling, HTTP. Never here: whether a job should stop, who runs next, or what a backend does.
"""
