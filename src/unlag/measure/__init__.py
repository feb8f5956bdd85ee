"""Numbers to trust: contests of isolated processes, their statistics, and the machine around them."""
