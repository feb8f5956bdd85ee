"""unlag's fixed models beside what other tools make of the same standards, timed in the same rounds.

Run it from a checkout as ``python -m benchmarks.peers``, in an environment with ``requirements.txt``.
"""
