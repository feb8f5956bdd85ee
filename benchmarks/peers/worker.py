"""unlag's worker with this benchmark's runtimes: the same requests, the same turns, the same cores."""

from __future__ import annotations

import signal

from benchmarks.peers.runtimes.find import find

from unlag.measure.worker import Worker, die_with_parent, serve

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal group; the parent decides
    die_with_parent()
    serve(Worker(find).answer)
