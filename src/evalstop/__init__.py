"""evalstop: stop fine-tuning runs whose held-out quality is falling, keep their best checkpoint."""

__version__ = "0.1.0"
