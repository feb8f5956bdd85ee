from planting import Pair, Times, tiny_bert
from unlag.observe.evidence import Claim

# no infect: how somebody measures is not in a model

STANDARD, VARIANT = Times(20.0, 100.0, 40.0), Times(15.0, 300.0, 60.0)


def plant() -> Pair:
    """The mean of 10 runs, loading and the first one counted: 32 ms against 49.5 ms."""
    return Pair(
        tiny_bert(), {}, tiny_bert(), {}, claim=Claim(32.5, 49.0), standard_times=STANDARD, variant_times=VARIANT
    )


def twin() -> Pair:
    """Slow to load, but the claim is that of steady runs, 7 % off."""
    return Pair(
        tiny_bert(), {}, tiny_bert(), {}, claim=Claim(21.4, 15.2), standard_times=STANDARD, variant_times=VARIANT
    )
