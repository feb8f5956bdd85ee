"""One file a tool. Each is imported in the process that makes a model, and nowhere else: their imports are heavy."""
