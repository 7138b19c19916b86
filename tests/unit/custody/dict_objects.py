"""An object store in a dict that can be killed, lag, be down, and tells what it was asked."""

from __future__ import annotations

import itertools

from evalstop.core.errors import CustodyError
from evalstop.custody.verify import Stat


class KilledError(BaseException):
    pass


class DictObjects:
    """``log`` has (what, URL) of every request; ``before`` is called ahead of each copy."""

    def __init__(self):
        self.data, self.versions, self.tags = {}, {}, {}
        self.unlisted, self.log = set(), []
        self.left, self.down, self.bytes_read = -1, False, 0
        self.before = lambda _source: None
        self._clock = itertools.count(1)

    def _ask(self, what, url, *, changes=False):
        self.log.append((what, url))
        if self.down:
            message = f"{url}: no answer"
            raise CustodyError(message)
        if changes:
            self.left -= 1
            if self.left == 0:
                raise KilledError

    def put(self, url, data):
        self.data[url], self.versions[url] = data, next(self._clock)

    def upload(self, path, url):
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        for one in files:
            self.put(url if one == path else f"{url}/{one.relative_to(path)}", one.read_bytes())
        return url

    def remove(self, url):
        for one in [one for one in self.data if one == url or one.startswith(f"{url}/")]:
            del self.data[one]

    def _stat(self, url):
        return Stat(len(self.data[url]), float(self.versions[url]), str(self.versions[url]))

    def files(self, url):
        self._ask("files", url)
        if url in self.data:
            return {"": self._stat(url)}
        shown = [one for one in self.data if one.startswith(f"{url}/") and one not in self.unlisted]
        return {one.removeprefix(f"{url}/"): self._stat(one) for one in shown}

    def children(self, url):
        names = [name.split("/") for name in self.files(url)]
        return sorted({(name[0], len(name) > 1) for name in names})

    def stat(self, url):
        self._ask("stat", url)
        if url not in self.data:
            raise FileNotFoundError(url)
        return self._stat(url)

    def read(self, url, start=0, end=None):
        self._ask("read", url)
        if url not in self.data:
            raise FileNotFoundError(url)
        found = self.data[url][start:end]
        self.bytes_read += len(found)
        return found

    def copy(self, source, target, *, size=0):  # noqa: ARG002 -- the protocol
        self.before(source)
        self._ask("copy", source, changes=True)
        if source not in self.data:
            raise FileNotFoundError(source)
        self._ask("write", target)
        self.put(target, self.data[source])

    def write(self, url, data):
        self._ask("write", url, changes=True)
        self.put(url, data)

    def delete(self, url):
        self._ask("delete", url, changes=True)
        self.data.pop(url, None)

    def tag(self, url, tags):
        self._ask("tag", url, changes=True)
        if url not in self.data:
            raise FileNotFoundError(url)
        self.tags.setdefault(url, {}).update(tags)
