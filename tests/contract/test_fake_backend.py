from __future__ import annotations

from evalstop.ports import Launch
from evalstop.testing import BackendContract, FakeBackend


class TestFakeBackend(BackendContract):
    def backend(self):
        return FakeBackend(gpus=2)

    def reopened(self, backend):
        return backend

    def lasting(self):
        return Launch(command=("last",))

    def stubborn(self):
        return Launch(command=("stubborn",))

    def ending(self, code):
        return Launch(command=("exit", str(code)))
